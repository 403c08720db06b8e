"""Reads a YAML file and overrides into a tree of sections.

Every section rejects unknown keys. Every error is one line with file, line and key, converted from
msgspec's message.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from seer_sgl.errors import ConfigError
from seer_sgl.sampling import ALIAS, LIMIT, canonical

from . import loader
from .engines import DEFAULT_LAUNCH, KEYS, LAUNCHES, EnginesConfig
from .loader import MAX_BYTES, BadYaml
from .masking import MASK, is_secret, masked
from .section import Section
from .values import invalid_values

Tree = TypeVar("Tree", bound=Section)
KEY_PATH = re.compile(r"[\w.-]*")
# Keys of earlier versions: what replaces them.
OWN_MOONCAKE = "a Mooncake of your own, named by kv_pool.master, has that setting"
FULL = "in a checkout, python -m bench.full"
PREDICTION = f"{FULL} --sim FILE has the prediction"
REMOVED = {
    "kv_pool.replicas": OWN_MOONCAKE,
    "kv_pool.ssd_path": OWN_MOONCAKE,
    "kv_pool.ssd_size": OWN_MOONCAKE,
    "engines.base_port": "local engines listen on free ports, which the log and /server_info name",
    "server.max_batch": "a request may ask for 4,096 responses",
    "server.max_prompt_tokens": "the engines' context length is the limit",
    "bench.soak": f"{FULL} --soak N has it",
    "bench.reserve_tokens": PREDICTION,
    "bench.pool": PREDICTION,
    "bench.speculation": PREDICTION,
    "bench.greedy_prompts": "greedy arms take 64 prompts",
    "bench.ngram": "SGLang's own speculation drafts 8 tokens",
    "speculation.draft_ms": "speculation.step_cpu_ms is the time of a verified step on the CPU",
}


def read_tree(
    path: Path | None, overrides: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns a YAML file (None: empty) with its overrides as a tree, and where each key was set.

    Raises ConfigError if the file cannot be read or an override is invalid.
    """
    tree, where = ({}, {}) if path is None else _read(path)
    for override in overrides:
        _apply(tree, override, where)
    return tree, where


def convert(tree: Mapping[str, Any], where: Mapping[str, str], kind: type[Tree]) -> Tree:
    """Returns the tree as a config of type `kind`. Raises ConfigError with key and place."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"a config: expected a mapping, got {type(tree).__name__}")
    tree, where = _canonical(tree, where)
    if isinstance(tree.get("engines"), Mapping):
        tree = {**tree, "engines": _of_launch(tree["engines"], where)}
    try:
        config = msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), where, kind)) from error
    for key, problem in invalid_values(msgspec.to_builtins(config)):
        raise ConfigError(f"{place_of(key, where)}{key}: {problem}")
    return config


def _canonical(
    tree: Mapping[str, Any], where: Mapping[str, str]
) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Returns tree and places with the response limit under SGLang's name. Raises ConfigError if
    the sampling section is invalid."""
    sampling = tree.get("sampling")
    if not isinstance(sampling, Mapping):
        return tree, where
    try:
        tree = {**tree, "sampling": canonical(sampling)}
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place_of(f'sampling.{ALIAS}', where)}sampling: {error}") from error
    return tree, {
        f"sampling.{LIMIT}" if key == f"sampling.{ALIAS}" else key: place
        for key, place in where.items()
    }


def _of_launch(engines: Mapping[str, Any], where: Mapping[str, str]) -> dict[str, Any]:
    """Returns the section with its `launch` and without unset keys of another launch.

    Unset is null or the default. Raises ConfigError for a key of another launch that is set.
    """
    engines = {"launch": DEFAULT_LAUNCH, **engines}
    launch = str(engines["launch"])
    for name, launches in KEYS.items():
        if name in engines and launch in LAUNCHES and launch not in launches:
            unset = getattr(LAUNCHES[launches[0]](), name)
            if engines.pop(name) not in (None, unset):
                key, only = f"engines.{name}", " or ".join(launches)
                raise ConfigError(
                    f"{place_of(key, where)}{key}: only for launch: {only}; null unsets it"
                )
    return engines


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes")
    try:
        node, tree = loader.load(data.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file") from error
    except BadYaml as error:
        line = "" if error.line is None else f":{error.line}"
        raise ConfigError(f"{path}{line}: {error}") from error
    if tree is None:
        return {}, {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}:1: expected a mapping with sections such as `engines:`")
    return _with_text_keys(tree), dict(_lines(node, str(path), ""))


def _with_text_keys(tree: Any) -> Any:
    """Returns the tree with keys as text: `logit_bias: {5: 1.0}` means token "5"."""
    if isinstance(tree, dict):
        return {str(key): _with_text_keys(value) for key, value in tree.items()}
    return tree


def _lines(node: yaml.Node | None, path: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields (key path, file:line) of every key below a YAML node."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{prefix}.{key.value}" if prefix else str(key.value)
            yield name, f"{path}:{key.start_mark.line + 1}"
            yield from _lines(value, path, name)


def _apply(tree: dict[str, Any], override: str, where: dict[str, str]) -> None:
    key, equals, raw = override.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--set {KEY_PATH.findall(key)[0]}: expected key.path=value")
    try:
        _, value = loader.load(raw)
    except BadYaml as error:
        raise ConfigError(f"--set {key}: the value is not valid YAML") from error
    # A secret under a misspelt key is one, too.
    secret = key.startswith(("engines.", "server.")) and is_secret(key.rpartition(".")[2])
    shown = MASK if secret else masked(value, key)
    place = f"--set {override if repr(shown) == repr(value) else f'{key}={MASK}'}"
    *parents, leaf = key.split(".")
    section = tree
    for parent in parents:
        below = section.setdefault(parent, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{place}: {parent} is not a section")
        section = below
    section[leaf] = _with_text_keys(value)
    where[key] = place


def _explain(complaint: str, where: Mapping[str, str], kind: type[Section]) -> str:
    """Returns msgspec's message with the place in front and the key path in our spelling."""
    key, message = key_and_message(complaint)
    unknown = re.match(r"object contains unknown field (.*)", message, re.DOTALL)
    if unknown:
        name = unknown.group(1)
        hint = _hint(name, _section(kind, key))
        key = f"{key}.{name}" if key else name
        message = f"removed; {REMOVED[key]}" if key in REMOVED else f"unknown key{hint}"
    place = place_of(key, where)
    return f"{place}{key}: {message}" if key else f"{place}{message}"


def key_and_message(complaint: str) -> tuple[str, str]:
    """Returns the key path (may be empty) and the problem of a msgspec message."""
    message, _, path = complaint.replace("at `key` in `$", "at `$").partition(" - at `$")
    message = message.replace("`", "")
    return path.rstrip("`").lstrip("."), message[:1].lower() + message[1:]


def plain(complaint: str) -> str:
    """Returns msgspec's message in our spelling: `key: problem`."""
    key, message = key_and_message(complaint)
    return f"{key}: {message}" if key else message


def _hint(name: str, section: type[msgspec.Struct] | None) -> str:
    if section is None:
        return ""
    known = [field.name for field in msgspec.structs.fields(section)]
    if issubclass(section, EnginesConfig):
        known = ["launch", *KEYS]
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"


def _section(kind: type[Section], key: str) -> type[msgspec.Struct] | None:
    """Returns the section at `key`; None inside a mapping or a list, whose names are free."""
    section: Any = kind
    for name in filter(None, key.split(".")):
        section = type(getattr(section(), name, None))
    return section if issubclass(section, msgspec.Struct) else None


def place_of(key: str, where: Mapping[str, str]) -> str:
    """Returns the place where `key`, a key below it or a section around it was set: '...: ', or
    empty if unknown."""
    key = re.sub(r"\[.*", "", key)
    while key:
        for name, place in where.items():
            if name == key or name.startswith(f"{key}."):
                return f"{place}: "
        key = key.rpartition(".")[0]
    return ""
