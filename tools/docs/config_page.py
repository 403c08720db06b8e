"""The page docs/configuration.md, from the config's sections."""

from collections.abc import Iterator
from typing import Any

import msgspec

from seer_sgl.benchmark.config import BenchSection
from seer_sgl.config.tree import Config, Section

from .sources import field_docs

HEAD = """\
# Configuration

Every key of a config, its default and its meaning: for authors of a config. The keys of the simulator are in the [workload files](../configs/sim).

A config is a YAML file with the sections below. Every key can also be set on the command line: `--set scheduling.chunk_tokens=4096`. An unknown key, a wrong type or an
impossible value ends the command with exit status 2 and one line that names file, line and key.
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
Penalties, grammars and stop regexes keep state inside one SGLang request: with them requests run undivided, with one warning, and an aborted request begins again from its prompt.
Seeds act only on engines with `enable-deterministic-inference`.
""",
    "bench": """\
Only in the config of `seer-sgl bench` ([Benchmark](benchmark.md)).
""",
}


def text() -> str:
    """Returns the page."""
    sections = {name: type(value) for name, value in _values(Config()).items()}
    tables = [line for name, kind in sections.items() for line in _table(name, kind)]
    return "\n".join([HEAD, *tables, *_table("bench", BenchSection)])


def _values(section: Any) -> dict[str, Any]:
    return {name: getattr(section, name) for name in section.__struct_fields__}


def _table(name: str, kind: type[Any]) -> Iterator[str]:
    yield f"## {name}\n"
    about = " ".join((kind.__doc__ or "").split())
    yield f"{about}\n"
    if name in NOTES:
        yield NOTES[name]
    yield "| key | type | default | meaning |\n|---|---|---|---|"
    docs = field_docs(kind)
    for field in msgspec.structs.fields(kind):
        yield (
            f"| `{name}.{field.name}` | {_type(field.type)} | {_default(field)} "
            f"| {docs[field.name]} |"
        )
    yield ""


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
