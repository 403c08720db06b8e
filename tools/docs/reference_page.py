"""The page docs/reference.md, from the signatures and docstrings of the public names."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec

import seer_sgl

from .prose import wrapped

HEAD = """\
# Reference

All names of `seer_sgl` that a program may rely on, with their docstrings.
The fields of the types that they name may be relied on too; every other name may change. How to use them: [Python](python.md).
"""
HIDDEN = (  # for the driver, the rollout and the server
    "Driver.over",
    "Run.engine_of",
    "Run.fail",
    "Run.finish",
    "Run.leave",
)
HANDED_OUT = (
    "Backend",
    "Client",
    "Driver",
    "Fleet",
    "Observer",
    "Run",
)  # without arguments, or not by a program


def text() -> str:
    """Returns the page."""
    names = {name: getattr(seer_sgl, name) for name in seer_sgl.__all__}
    errors = {n: v for n, v in names.items() if isinstance(v, type) and issubclass(v, Exception)}
    sections = [
        line
        for name, value in names.items()
        if name not in errors
        for line in _section(name, value)
    ]
    return "\n".join([HEAD, *sections, "## Errors", "", *_errors(errors), ""])


def _section(name: str, value: Any) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    if not inspect.isclass(value):
        yield from _call(f"{name}{_signature(value)}")
    elif not _is_data(value) and name not in HANDED_OUT:
        yield from _call(f"{name}{_signature(value.__init__, bound=True)}")
    yield inspect.getdoc(value) or ""
    yield ""
    if _is_data(value):
        yield wrapped(f"Fields: {', '.join(f'`{field}`' for field in _fields(value))}.")
        yield ""
    if inspect.isclass(value):
        for method, member in _members(value):
            if not _is_data(value) or isinstance(member, classmethod):
                yield from _member(method, member)


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties of a class, in the order of its source."""
    for name, member in vars(cls).items():
        described = isinstance(member, property | staticmethod | classmethod) or callable(member)
        if described and not name.startswith("_") and f"{cls.__name__}.{name}" not in HIDDEN:
            yield name, member


def _member(name: str, member: Any) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    if not isinstance(member, property):
        function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        asynchronous = "await " if inspect.iscoroutinefunction(function) else ""
        bound = not isinstance(member, staticmethod)
        yield from _call(f"{asynchronous}{name}{_signature(function, bound=bound)}")
    yield inspect.getdoc(member) or ""
    yield ""


def _call(line: str) -> Iterator[str]:
    yield from ("```py", line, "```", "")


def _signature(function: Any, *, bound: bool = False) -> str:
    """Returns the parameters of a function, without modules before the names of types."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(default=...)
        if isinstance(parameter.default, msgspec.Struct)
        else parameter
        for parameter in list(signature.parameters.values())[bound:]
    ]
    signature = signature.replace(parameters=parameters)
    written = str(signature).replace("Ellipsis", "...")
    written = re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=\w)", "", written)
    written = re.sub(r"(: |-> )'([^']+)'", r"\1\2", written)  # annotations in quotes
    written = re.sub(r"'([A-Z]\w*)'", r"\1", written.replace("~T", "T"))
    return re.sub(r"<built-in function (\w+)>", r"\1", written).replace(" -> None", "")


def _is_data(value: Any) -> bool:
    return inspect.isclass(value) and (
        issubclass(value, msgspec.Struct)
        or (issubclass(value, tuple) and hasattr(value, "_fields"))
    )


def _fields(cls: Any) -> tuple[str, ...]:
    fields: tuple[str, ...] = getattr(cls, "__struct_fields__", None) or cls._fields
    return tuple(field for field in fields if not field.startswith("_"))


def _errors(errors: dict[str, Any]) -> Iterator[str]:
    yield "| error | is a | raised for |"
    yield "|---|---|---|"
    for name, error in errors.items():
        meaning = " ".join((inspect.getdoc(error) or "").split("\n\n")[0].split())
        yield f"| `{name}` | `{error.__base__.__name__}` | {meaning} |"
