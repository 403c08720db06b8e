"""What the plugin's files need of SGLang, and what of it a version lacks. Nothing is imported.

The sources of both sides are compared: names that a file imports, members of SGLang's objects that
it uses (sglang_types.py), functions that it calls, and the parameters of functions that it hooks.
"""

import ast
import functools
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import sglang_types
from .hook import Hook
from .sources import PACKAGE, Sources

PLUGIN = Path(__file__).parent
_PROTOCOL = re.compile(r"\bSgl\w+")
_REPLACED = re.compile(r"\bReplaces (sglang[\w.]+\w)")


class UsedCall(NamedTuple):
    """A call of SGLang's function `name`: so many arguments by place, and these by name."""

    name: str
    places: int
    names: tuple[str, ...]


class Override(NamedTuple):
    """A method of ours that SGLang calls as its own method `name`, with these parameters."""

    name: str
    takes: str  # names, separated by spaces; "*" at the end: and any other


class Needs(NamedTuple):
    """What a file needs of SGLang.

    members: names, each with the dotted names of the classes of which one defines it.
    """

    imports: frozenset[str]
    members: frozenset[tuple[str, tuple[str, ...]]]
    calls: frozenset[UsedCall]
    overrides: frozenset[Override]


def files(name: str) -> list[Path]:
    """Returns the files of a module or package of the plugin. name: "pool", "cpu/attention"."""
    path = PLUGIN / name
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


@functools.cache
def needs_of(file: Path) -> Needs:
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    imported: dict[str, str] = {}
    protocols: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            if f"{node.module}.".startswith(f"{PACKAGE}."):
                imported |= {
                    alias.asname or alias.name: f"{node.module}.{alias.name}"
                    for alias in node.names
                }
            if (node.module or "").endswith("sglang_types"):
                protocols |= {alias.name for alias in node.names}
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    return Needs(
        frozenset(imported.values()),
        frozenset(member for member in members(_reached(protocols)) if member[0] in used),
        frozenset(_calls(nodes, imported)),
        frozenset(_overrides(nodes, imported)),
    )


def _calls(nodes: Iterable[ast.AST], imported: dict[str, str]) -> Iterator[UsedCall]:
    """Yields the calls of imported names, without calls whose arguments are unpacked."""
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        names = [keyword.arg for keyword in node.keywords]
        unpacked = None in names or any(isinstance(one, ast.Starred) for one in node.args)
        if node.func.id in imported and not unpacked:
            yield UsedCall(
                imported[node.func.id], len(node.args), tuple(name for name in names if name)
            )


def _overrides(nodes: Iterable[ast.AST], imported: dict[str, str]) -> Iterator[Override]:
    """Yields the methods of classes that derive from one of SGLang, or replace one.

    The docstring of a class names what it replaces: "Replaces sglang.srt.NAME".
    """
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [imported[b.id] for b in node.bases if isinstance(b, ast.Name) and b.id in imported]
        bases += _REPLACED.findall(ast.get_docstring(node) or "")
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and bases:
                args = method.args
                names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
                takes = " ".join([*names, *(["*"] if args.kwarg else [])])
                yield from (Override(f"{base}.{method.name}", takes) for base in bases)


def members(protocols: Iterable[type]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the members of Protocols of sglang_types.py, with the classes that their docstrings
    name."""
    for protocol in protocols:
        words = (protocol.__doc__ or "").split()
        classes = tuple(word for word in words if word.startswith(f"{PACKAGE}."))
        for name in sorted({**protocol.__annotations__, **vars(protocol)}):
            if not name.startswith(("__", "seer_", "_abc_", "_is_")):
                yield name, classes


def _reached(names: Iterable[str]) -> Iterator[type]:
    """Yields the Protocols of these names, their bases, and the types of their members."""
    left, seen = sorted(names), set[str]()
    while left:
        name = left.pop()
        if name in seen or not _PROTOCOL.fullmatch(name):
            continue
        seen.add(name)
        protocol: type = getattr(sglang_types, name)
        yield protocol
        left += [base.__name__ for base in protocol.__mro__]
        left += _PROTOCOL.findall(str(protocol.__annotations__))
        for method in vars(protocol).values():
            left += _PROTOCOL.findall(str(getattr(method, "__annotations__", "")))


def lacking(hooks: Sequence[Hook], used: Sequence[Path], sources: Sources) -> Iterator[str]:
    """Yields one line per need of hooks and files of the plugin that SGLang does not meet."""
    needs = [needs_of(file) for file in used]
    targets = {hook.target for hook in hooks}
    imports = {name for need in needs for name in need.imports}
    for kind, names in (("hook", targets), ("import", imports)):
        for name in sorted(names):
            if sources.find(name) is None:
                owner, _, last = name.rpartition(".")
                yield _gone(kind, last, owner, sources)
    for name, classes in sorted({member for need in needs for member in need.members}):
        if not any(sources.find(f"{owner}.{name}") for owner in classes):
            yield _gone("member", name, classes[0], sources)
    for hook in hooks:
        target = parameters(sources, hook.target)
        if target is not None and not accepts(hook, target):
            yield f"hook {hook.target}: its parameters are ({ast.unparse(target)})"
    for call in sorted({call for need in needs for call in need.calls}):
        yield from _refused(call, sources)
    for override in sorted({override for need in needs for override in need.overrides}):
        yield from _unknown(override, sources)


def _unknown(override: Override, sources: Sources) -> Iterator[str]:
    """Yields a line if SGLang hands arguments over that a method of ours does not take."""
    target = parameters(sources, override.name)
    takes = override.takes.split()
    if target is None or "*" in takes:
        return
    names = [arg.arg for arg in (*target.posonlyargs, *target.args, *target.kwonlyargs)]
    for name in names:
        if name not in takes:
            yield f"override {override.name}: a new parameter {name}"


def _gone(kind: str, name: str, owner: str, sources: Sources) -> str:
    return f"{kind} {name} is gone {'from' if sources.find(owner) else 'with'} {owner}"


def parameters(sources: Sources, dotted: str) -> ast.arguments | None:
    """Returns the parameters of a function or method; None for anything else."""
    place = sources.find(dotted)
    node = None if place is None else place.node
    return node.args if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def accepts(hook: Hook, target: ast.arguments) -> bool:
    """Returns whether a hook's function takes the calls that the function it hooks takes.

    Arguments with a default are tried by name only.
    """
    extra = [None] if hook.kind in ("after", "around") else []  # the result, or SGLang's function
    places = [arg.arg for arg in (*target.posonlyargs, *target.args)]
    least = len(places) - len(target.defaults)
    own = 1 if places[:1] in (["self"], ["cls"]) else len(target.posonlyargs)
    names = [arg.arg for arg in target.kwonlyargs]
    required = [
        name for name, default in zip(names, target.kw_defaults, strict=True) if default is None
    ]
    takes = inspect.signature(hook.function)
    kinds = {parameter.kind for parameter in takes.parameters.values()}
    if target.vararg and inspect.Parameter.VAR_POSITIONAL not in kinds:
        return False
    if target.kwarg and inspect.Parameter.VAR_KEYWORD not in kinds:
        return False
    calls = (
        (places[:least], [*places[least:], *names]),
        (places[:least], required),
        (places[:own], [*places[own:], *names]),
    )
    return all(_binds(takes, [*extra, *by_place], by_name) for by_place, by_name in calls)


def _refused(call: UsedCall, sources: Sources) -> Iterator[str]:
    """Yields a line if SGLang's function, or the class that is called, does not take a call."""
    place = sources.find(call.name)
    if place is not None and isinstance(place.node, ast.ClassDef):
        target = parameters(sources, f"{call.name}.__init__")
        if target is None:  # a dataclass: its fields are its parameters
            for name in call.names:
                if sources.find(f"{call.name}.{name}") is None:
                    yield f"call {call.name}: no parameter {name}"
            return
        call = call._replace(places=call.places + 1)
    else:
        target = parameters(sources, call.name)
    if target is not None and not _binds(_signature(target), [None] * call.places, call.names):
        yield f"call {call.name}: its parameters are ({ast.unparse(target)})"


def _signature(target: ast.arguments) -> inspect.Signature:
    """Returns the signature that parameters in a source stand for."""
    parameter = inspect.Parameter
    places = [*target.posonlyargs, *target.args]
    least = len(places) - len(target.defaults)
    found = [
        parameter(
            arg.arg,
            parameter.POSITIONAL_OR_KEYWORD,
            default=parameter.empty if index < least else None,
        )
        for index, arg in enumerate(places)
    ]
    if target.vararg:
        found.append(parameter(target.vararg.arg, parameter.VAR_POSITIONAL))
    for arg, default in zip(target.kwonlyargs, target.kw_defaults, strict=True):
        value = parameter.empty if default is None else None
        found.append(parameter(arg.arg, parameter.KEYWORD_ONLY, default=value))
    if target.kwarg:
        found.append(parameter(target.kwarg.arg, parameter.VAR_KEYWORD))
    return inspect.Signature(found)


def _binds(takes: inspect.Signature, places: Sequence[object], names: Iterable[str]) -> bool:
    try:
        takes.bind(*places, **dict.fromkeys(names))
    except TypeError:
        return False
    return True
