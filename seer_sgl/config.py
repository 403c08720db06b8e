"""The config tree. Sampling names are SGLang's own; the rest are the field's (README).

Every struct refuses unknown keys; `load` turns msgspec's complaint into one line with the file,
the line and the key.
"""

import difflib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import yaml

from .errors import ConfigError

Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0)]
FlagValue = bool | int | float | str | list[int | float | str]


# SGLang flags that have a key of their own.
RESERVED_FLAGS = {
    "model-path": "model.path",
    "model": "model.path",
    "tokenizer-path": "model.tokenizer_path",
    "port": "engines.base_port",
    "api-key": "engines.api_key",
}
LAST_PORT = 65535
HOST_PORT = re.compile(r"[^:/\s]+:[0-9]+")
SIZE = re.compile(r"([0-9.]+) *([kmgt]?)i?b?")
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
LEAST_MEMORY = 16 << 20  # bytes; Mooncake mounts segments in pieces of 16 MiB
# SGLang flags that the KV pool sets.
POOL_FLAGS = {
    "page-size": "kv_pool.page_size",
    "hicache-ratio": "kv_pool.host_ratio",
    "hicache-storage-backend": "kv_pool.backend",
    "hicache-storage-backend-extra-config": "kv_pool",
    "hicache-write-policy": "kv_pool",
    "hicache-storage-prefetch-policy": "kv_pool",
    "enable-hierarchical-cache": "kv_pool.backend",
    "enable-cache-report": "kv_pool",
    "disable-radix-cache": "kv_pool.backend: none",
}


class Section(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of every part of the tree."""


Tree = TypeVar("Tree", bound=Section)


class ModelConfig(Section):
    """The model in Hugging Face layout. `tokenizer_path` defaults to `path`."""

    path: str | None = None
    tokenizer_path: str | None = None


class EnginesConfig(Section):
    """The SGLang servers: started here (`local`) or already running (`external`, by `urls`)."""

    launch: Literal["local", "external"] = "local"
    count: Positive = 1
    # CPU cores to pin each local engine to; auto: one each, in turn.
    cores: list[list[Natural]] | Literal["auto"] | None = None
    sglang: dict[str, FlagValue] = {}  # SGLang's own server flags, passed through untouched
    urls: list[str] = []
    # host:port where the driver listens for the plugins of external engines; local ones know it.
    link: str | None = None
    # Default: free ports.
    base_port: Annotated[int, msgspec.Meta(ge=1024, le=LAST_PORT)] | None = None
    start_timeout_s: Seconds = 600.0
    stall_timeout_s: Seconds = 120.0  # an engine with work and no progress for so long is stuck
    recovery_timeout_s: Seconds = 60.0  # how long a rollout waits while no engine answers
    api_key: str | None = None


class KvPoolConfig(Section):
    """The global KV pool (paper section 1): KV of a chunk waits there for the next engine.

    `mooncake` starts a local Mooncake, or joins the one at `master`; `file` is a folder that all
    engines see; `none`: a chunk on another engine prefills again.
    """

    backend: Literal["none", "mooncake", "file"] = "none"
    page_size: Positive = 64  # tokens; full pages only are shared
    host_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 2.0  # host KV tokens per device KV token
    memory: str = "4gb"  # of a local store node
    stores: Positive = 1  # local store nodes
    replicas: Positive = 1  # copies of a page, each on another store node
    protocol: Literal["tcp", "rdma"] = "tcp"
    device: str = ""  # RDMA devices, as Mooncake names them
    master: str | None = None  # host:port of a Mooncake that runs already
    # Of external engines: a name that no other run with other weights uses in that pool.
    namespace: str | None = None
    ssd_path: str | None = None  # folder where local store nodes put what memory cannot hold
    ssd_size: str = "64gb"  # that a store node may take there; the oldest goes first
    directory: str | None = None  # of the file backend

    def memory_bytes(self) -> int:
        """`memory` in bytes. Raises ValueError when it is not a size."""
        return _size(self.memory)

    def ssd_bytes(self) -> int:
        """`ssd_size` in bytes. Raises ValueError when it is not a size."""
        return _size(self.ssd_size)


def _size(text: str) -> int:
    found = SIZE.fullmatch(text.lower().strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 512mb or 4gb")
    return int(float(found[1]) * SIZE_UNITS[found[2]])


class SchedulingConfig(Section):
    """How requests are divided, ordered and admitted (paper sections 1 and 2)."""

    policy: Literal["seer", "no_context", "oracle", "group_round_robin", "group_least_loaded"] = (
        "seer"
    )
    lengths: str | None = None  # JSONL of an earlier rollout: prior of `seer`, truth of `oracle`
    chunk_tokens: Positive = 8192
    divide: bool = True
    kv_ledger: bool = True  # False admits by count only: the baseline that retracts
    max_inflight_per_engine: Positive | None = None  # default: the engine's max_running_requests
    max_spread: Natural | None = None  # chunks in flight, most minus least, that count as balanced
    fetch_gap_tokens: Natural = 512  # a larger cache gap is fetched from the pool, not prefilled


class SamplingConfig(Section):
    """SGLang's sampling parameters; `max_response_len` is the field's name for max_new_tokens."""

    max_response_len: Positive = 8192
    min_new_tokens: Natural = 0
    temperature: Annotated[float, msgspec.Meta(ge=0.0)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=-1)] = -1
    min_p: Fraction = 0.0
    stop: str | list[str] = []
    stop_token_ids: list[Natural] = []
    stop_regex: str | list[str] = []
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    logit_bias: dict[str, float] = {}
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] = 0.0
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0.0, le=2.0)] = 1.0
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None

    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def undivided_because(self) -> list[str]:
        """The parameters whose state lives in one SGLang request and cannot cross a chunk."""
        neutral = SamplingConfig()
        stateful = (
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "json_schema",
            "regex",
            "ebnf",
            "structural_tag",
            "stop_regex",
        )
        return [name for name in stateful if getattr(self, name) != getattr(neutral, name)]


class RolloutConfig(Section):
    """What to roll out. `seed` None draws one; the report tells it."""

    prompts: str | None = None
    n_samples_per_prompt: Positive = 8
    max_prompts: Positive | None = None
    seed: Natural | None = None


class Config(Section):
    """The whole tree."""

    model: ModelConfig = msgspec.field(default_factory=ModelConfig)
    engines: EnginesConfig = msgspec.field(default_factory=EnginesConfig)
    kv_pool: KvPoolConfig = msgspec.field(default_factory=KvPoolConfig)
    scheduling: SchedulingConfig = msgspec.field(default_factory=SchedulingConfig)
    sampling: SamplingConfig = msgspec.field(default_factory=SamplingConfig)
    rollout: RolloutConfig = msgspec.field(default_factory=RolloutConfig)


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file (None: all defaults) and apply `key.path=value` overrides.

    Raises ConfigError with one line that names the key and where it was set.
    """
    return parse(*read_tree(path, overrides))


def parse(tree: Mapping[str, Any], where: Mapping[str, str] | None = None) -> Config:
    """A checked Config from plain mappings. `where`: key path -> the place it was set."""
    config = convert(tree, where or {}, Config)
    _check(config, where or {})
    return config


def read_tree(
    path: Path | None, overrides: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """A YAML file (None: empty) with its overrides, as a tree, and where each key was set."""
    tree, where = ({}, {}) if path is None else _read(path)
    for override in overrides:
        _apply(tree, override, where)
    return tree, where


def convert(tree: Mapping[str, Any], where: Mapping[str, str], kind: type[Tree]) -> Tree:
    """The tree as a config of some `kind`. Raises ConfigError with key and place."""
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), where, kind)) from None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        tree = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not a YAML text file"
        raise ConfigError(f"{path}{line}: {problem}") from None
    if tree is None:
        return {}, {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}:1: expected a mapping with sections such as `engines:`")
    return _with_text_keys(tree), dict(_lines(node, str(path), ""))


def _with_text_keys(tree: Any) -> Any:
    """The tree with text for keys: `logit_bias: {5: 1.0}` means token "5"."""
    if isinstance(tree, dict):
        return {str(key): _with_text_keys(value) for key, value in tree.items()}
    return tree


def _lines(node: yaml.Node | None, path: str, prefix: str) -> Iterator[tuple[str, str]]:
    """(key path, file:line) of every key below a YAML node."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{prefix}.{key.value}" if prefix else str(key.value)
            yield name, f"{path}:{key.start_mark.line + 1}"
            yield from _lines(value, path, name)


def _apply(tree: dict[str, Any], override: str, where: dict[str, str]) -> None:
    key, equals, raw = override.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--set {override}: expected key.path=value")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override}: the value is not valid YAML") from None
    *parents, leaf = key.split(".")
    section = tree
    for parent in parents:
        below = section.setdefault(parent, {})
        if not isinstance(below, dict):
            raise ConfigError(f"--set {override}: {parent} is not a section")
        section = below
    section[leaf] = value
    where[key] = f"--set {override}"


def _explain(complaint: str, where: Mapping[str, str], kind: type[Section]) -> str:
    """msgspec's message with the place in front and the key path in our spelling."""
    key, message = key_and_message(complaint)
    unknown = re.match(r"object contains unknown field (.*)", message)
    if unknown:
        name = unknown.group(1)
        known = [field.name for field in msgspec.structs.fields(_section(kind, key))]
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
        key = f"{key}.{name}" if key else name
        message = f"unknown key{hint}"
    place = _place(key, where)
    return f"{place}{key}: {message}" if key else f"{place}{message}"


def key_and_message(complaint: str) -> tuple[str, str]:
    """msgspec's complaint, split into the key path (may be empty) and what is wrong with it."""
    message, _, path = complaint.partition(" - at `$")
    message = message.replace("`", "")
    return path.rstrip("`").lstrip("."), message[:1].lower() + message[1:]


def _section(kind: type[Section], key: str) -> type[Section]:
    section = kind
    for name in filter(None, key.split(".")):
        section = type(getattr(section(), name))
    return section


def _place(key: str, where: Mapping[str, str]) -> str:
    """Where `key`, something in it, or else a section around it was set; '...: ' or empty."""
    key = re.sub(r"\[.*", "", key)
    while key:
        for name, place in where.items():
            if name == key or name.startswith(f"{key}."):
                return f"{place}: "
        key = key.rpartition(".")[0]
    return ""


def _check(config: Config, where: Mapping[str, str]) -> None:
    """What a type cannot say: keys that contradict each other."""
    engines = config.engines
    wrong_engines = _wrong_external if engines.launch == "external" else _wrong_local
    for key, why in (
        *wrong_engines(engines),
        *_wrong_pool(config.kv_pool, engines),
        *_wrong_scheduling(config),
        *_wrong_sampling(config.sampling),
    ):
        raise ConfigError(f"{_place(key, where)}{key}: {why}")
    if engines.launch == "local" and config.model.path is None:
        raise ConfigError("model.path: launch: local needs a model")


def _wrong_external(engines: EnginesConfig) -> Iterator[tuple[str, str]]:
    if not engines.urls:
        yield "engines.urls", "launch: external needs at least one URL"
    for url in engines.urls:
        if not re.match(r"https?://[^/]+/?$", url):
            yield "engines.urls", f"{url!r} is not of the form http://host:port"
    if len({url.rstrip("/") for url in engines.urls}) < len(engines.urls):
        yield "engines.urls", "an engine is listed twice"
    if engines.link is not None and not HOST_PORT.fullmatch(engines.link):
        yield "engines.link", f"{engines.link!r} is not of the form host:port"


def _wrong_local(engines: EnginesConfig) -> Iterator[tuple[str, str]]:
    if engines.urls:
        yield "engines.urls", "only for launch: external"
    if engines.link is not None:
        yield "engines.link", "only for launch: external; local engines know their driver"
    if isinstance(engines.cores, list):
        if len(engines.cores) != engines.count:
            yield "engines.cores", f"{len(engines.cores)} lists for count: {engines.count}"
        absent = {core for cores in engines.cores for core in cores} - os.sched_getaffinity(0)
        if absent:
            yield "engines.cores", f"no core {min(absent)} on this machine"
    flags = {name.replace("_", "-"): value for name, value in engines.sglang.items()}
    for flag, key in RESERVED_FLAGS.items():
        if flag in flags:
            yield f"engines.sglang.{flag}", f"use {key}"
    if "host" in flags:
        yield "engines.sglang.host", "local engines serve their driver, on loopback"
    if engines.base_port is not None and engines.base_port + engines.count - 1 > LAST_PORT:
        yield (
            "engines.base_port",
            f"{engines.count} ports from {engines.base_port} pass {LAST_PORT}",
        )


def _wrong_pool(pool: KvPoolConfig, engines: EnginesConfig) -> Iterator[tuple[str, str]]:
    if pool.backend == "none":
        return
    if engines.launch == "external":
        yield from _wrong_shared_pool(pool, engines)
    elif pool.namespace is not None:
        yield "kv_pool.namespace", "only for launch: external; local engines get one of their own"
    flags = {name.replace("_", "-") for name in engines.sglang}
    for flag, key in POOL_FLAGS.items():
        if flag in flags:
            yield f"engines.sglang.{flag}", f"the KV pool sets it; use {key}"
    if pool.backend == "file":
        if not pool.directory:
            yield "kv_pool.directory", "backend: file needs a folder that every engine sees"
        return
    try:
        memory = pool.memory_bytes()
    except ValueError as error:
        yield "kv_pool.memory", str(error)
        return
    try:
        pool.ssd_bytes()
    except ValueError as error:
        yield "kv_pool.ssd_size", str(error)
    if memory < LEAST_MEMORY:
        yield "kv_pool.memory", f"{pool.memory} is less than Mooncake's smallest segment, 16mb"
    if pool.master is None and pool.replicas > pool.stores:
        yield "kv_pool.replicas", f"{pool.replicas} copies need as many kv_pool.stores"
    if pool.master is not None and not HOST_PORT.fullmatch(pool.master):
        yield "kv_pool.master", f"{pool.master!r} is not of the form host:port"


def _wrong_shared_pool(pool: KvPoolConfig, engines: EnginesConfig) -> Iterator[tuple[str, str]]:
    """What engines need that are started apart from each other and from the driver."""
    if engines.link is None:
        yield "engines.link", "a KV pool of external engines needs it: host:port of this driver"
    if not pool.namespace:
        yield "kv_pool.namespace", "external engines need one: a new name for each training run"
    if pool.backend == "mooncake" and pool.master is None:
        yield "kv_pool.master", "external engines need a Mooncake that runs already"


def _wrong_scheduling(config: Config) -> Iterator[tuple[str, str]]:
    """Keys that the chosen policy would silently ignore."""
    scheduling, policy = config.scheduling, f"policy: {config.scheduling.policy}"
    if scheduling.policy == "oracle" and scheduling.lengths is None:
        yield "scheduling.policy", "oracle needs scheduling.lengths"
    if scheduling.policy not in ("seer", "oracle") and scheduling.lengths is not None:
        yield "scheduling.lengths", f"{policy} uses no lengths"
    if scheduling.policy.startswith("group_"):
        whole = f"{policy} sends whole groups at once and never moves them"
        if config.kv_pool.backend != "none":
            yield "kv_pool.backend", whole
        if scheduling.max_inflight_per_engine is not None:
            yield "scheduling.max_inflight_per_engine", whole


def _wrong_sampling(sampling: SamplingConfig) -> Iterator[tuple[str, str]]:
    if not math.isfinite(sampling.temperature):
        yield "sampling.temperature", "must be finite"
    if sampling.top_k == 0:
        yield "sampling.top_k", "must be -1 (off) or at least 1"
    if sampling.min_new_tokens > sampling.max_response_len:
        yield "sampling.min_new_tokens", "exceeds sampling.max_response_len"
    if any(not stop for stop in sampling.stops()):
        yield "sampling.stop", "an empty stop string"
    grammars = [sampling.json_schema, sampling.regex, sampling.ebnf, sampling.structural_tag]
    if sum(grammar is not None for grammar in grammars) > 1:
        yield "sampling", "only one of json_schema, regex, ebnf and structural_tag can be set"
