"""A sweep: the figures of a rollout at many values of one setting."""

import json
from collections.abc import Iterator

import msgspec

from seer_sgl.config import loader
from seer_sgl.config.loader import BadYaml
from seer_sgl.errors import ConfigError

from .config import SimConfig
from .outcome import Outcome

COMPARED = ("scheduling.policy", "speculation.enabled")  # every variant sets them itself


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the swept key, and its figures."""

    value: object
    outcome: Outcome


def parse_sweep(text: str) -> tuple[str, list[object]]:
    """Parses `key=a,b,c` into the full key path and its values. A bare key is looked up in the
    sections.

    Raises ConfigError if the text has another form or the key is unknown.
    """
    key, equals, values = text.partition("=")
    if not equals or not key or not all(values.split(",")):
        raise ConfigError(f"--sweep {text}: expected key=value,value,...")
    if "." not in key:
        key = _full(key, text)
    if key in COMPARED:
        raise ConfigError(
            f"--sweep {text}: every policy sets this key; compare policies with --policy"
        )
    try:
        parsed = [loader.load(value)[1] for value in values.split(",")]
        json.dumps(parsed, allow_nan=False)
    except (BadYaml, ValueError, TypeError) as error:
        raise ConfigError(f"--sweep {text}: a value is not valid YAML, a date or nan") from error
    return key, parsed


def _full(key: str, text: str) -> str:
    matches = [path for path in _paths(SimConfig) if path.rpartition(".")[2] == key]
    if len(matches) != 1:
        hint = f"ambiguous: {', '.join(matches)}" if matches else "no such key"
        raise ConfigError(f"--sweep {text}: {key}: {hint}")
    return matches[0]


def _paths(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        path = f"{prefix}{field.name}"
        below = field.type
        if isinstance(below, type) and issubclass(below, msgspec.Struct):
            yield from _paths(below, f"{path}.")
        else:
            yield path
