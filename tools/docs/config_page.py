"""The page docs/configuration.md, from the config's sections."""

from collections.abc import Iterator
from typing import Any

import msgspec

from seer_sgl.benchmark.config import BenchSection
from seer_sgl.config import Config, EnginesConfig, Section
from seer_sgl.config.engines import DEFAULT_LAUNCH, LAUNCHES

from .prose import wrapped
from .sources import field_docs

HEAD = """\
# Configuration

A config is a YAML file with the sections below. Every key can also be set on the command line: `--set scheduling.chunk_tokens=4096`.
An unknown key, a wrong type or an impossible value ends the command with exit status 2 and one line that names file, line and key.
The keys of the simulator are in the [workload files](../configs/sim).
"""
PLAIN: dict[type[Any], str] = {
    msgspec.inspect.DictType: "mapping",
    msgspec.inspect.StructType: "section",
    msgspec.inspect.BoolType: "bool",
    msgspec.inspect.StrType: "text",
}
NOTES = {
    "sampling": """\
The names are SGLang's. A line of a prompts file may replace some of them for its prompt: `"sampling": {...}`.
Penalties, grammars and stop regexes keep state inside one SGLang request. With them requests run undivided, with one warning, and an aborted request
begins again from its prompt.
Seeds act only on engines with `enable-deterministic-inference`.
""",
    "bench": """\
Only in the config of `seer-sgl bench` ([Benchmark](benchmark.md)).
""",
}


def text() -> str:
    """Returns the page."""
    sections = {name: type(getattr(Config(), name)) for name in Config.__struct_fields__}
    sections |= {"engines": EnginesConfig, "bench": BenchSection}
    return "\n".join([HEAD, *(line for each in sections.items() for line in _table(*each))])


def _table(name: str, kind: type[Any]) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{wrapped(_about(kind))}\n"
    if name in NOTES:
        yield NOTES[name]
    yield "| key | type | default | meaning |\n|---|---|---|---|"
    yield from _launches() if kind is EnginesConfig else _rows(name, kind)
    yield ""


def _about(kind: type[Any]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _rows(name: str, kind: type[Any], only: str = "") -> Iterator[str]:
    """Yields a row per key that a class adds to its base. `only`: begins each meaning."""
    docs = field_docs(kind)
    for field in msgspec.structs.fields(kind):
        if field.name in kind.__annotations__:
            yield (
                f"| `{name}.{field.name}` | {_type(field.type)} | {_default(field)} "
                f"| {only}{docs[field.name]} |"
            )


def _launches() -> Iterator[str]:
    """Yields the rows of `engines`: `launch`, then the keys of each type and its base classes."""
    values = ", ".join(f"`{launch}`" for launch in sorted(LAUNCHES))
    meanings = " ".join(f"`{launch}`: {_about(kind)}" for launch, kind in LAUNCHES.items())
    yield f"| `engines.launch` | {values} | `{DEFAULT_LAUNCH}` | {meanings} |"
    for kind in dict.fromkeys(each for of in LAUNCHES.values() for each in reversed(of.__mro__)):
        having = [launch for launch, of in LAUNCHES.items() if issubclass(of, kind)]
        only = "" if len(having) == len(LAUNCHES) else f"Of `{'` and `'.join(having)}`. "
        if issubclass(kind, EnginesConfig):
            yield from _rows("engines", kind, only)


def _type(kind: Any) -> str:
    """Returns the type in words, with its bounds."""
    inner = msgspec.inspect.type_info(kind)
    return _words(inner)


def _words(info: Any) -> str:
    match info:
        case msgspec.inspect.UnionType(types=types):
            named = [one for one in types if not isinstance(one, msgspec.inspect.NoneType)]
            return " or ".join(dict.fromkeys(map(_words, named)))
        case msgspec.inspect.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in values)
        case msgspec.inspect.ListType(item_type=item):
            return f"list of {_words(item)}"
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return _number(info)
    return PLAIN[type(info)]


def _number(info: Any) -> str:
    name = "integer" if isinstance(info, msgspec.inspect.IntType) else "number"
    limits = {">": info.gt, ">=": info.ge, "<": info.lt, "<=": info.le}
    shown = [f"{sign} {limit:g}" for sign, limit in limits.items() if limit is not None]
    return " ".join([name, ", ".join(one for one in shown if "e+" not in one)]).strip()


def _default(field: Any) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        value = field.default
    if value is None or value in ("", [], {}) or isinstance(value, Section):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
