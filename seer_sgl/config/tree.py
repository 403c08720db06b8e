"""The config tree. Sampling names are SGLang's own (sampling.py); the rest are the field's."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

import msgspec

from seer_sgl.bounds import Natural, Positive
from seer_sgl.types import Sampling

from .addresses import LAST_PORT

MOST_PROCESSES = 1024  # of one kind on one machine
MOST_SAMPLES = 1 << 20  # of a prompt; each takes memory from the start

Processes = Annotated[int, msgspec.Meta(ge=1, le=MOST_PROCESSES)]
Samples = Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0)]
FlagValue = bool | int | float | str | list[int | float | str]

SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}) *([kmgt]?)i?b?")
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
MAX_SIZE = 1 << 60


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every part of the tree."""


S = TypeVar("S", bound=Section)


def with_values(section: S, values: Mapping[str, Any]) -> S:
    """Returns the section with other values under some key paths. They are not checked."""
    for key, value in values.items():
        name, _, below = key.partition(".")
        inner = with_values(getattr(section, name), {below: value}) if below else value
        section = msgspec.structs.replace(section, **{name: inner})
    return section


class ModelConfig(Section, frozen=True):
    """The model in Hugging Face layout. `tokenizer_path` defaults to `path`."""

    path: str | None = None
    tokenizer_path: str | None = None
    # Run Python code that comes with the model, here and on the engines that are started with it.
    trust_remote_code: bool = False


Cores = list[list[Natural]] | Literal["auto"] | None


class EnginesConfig(Section, frozen=True):
    """The SGLang servers: started here (`local`) or already running (`external`, by `urls`)."""

    launch: Literal["local", "external"] = "local"
    count: Processes = 1
    # CPU cores to pin each local engine to; auto: one each, in turn.
    cores: Cores = None
    sglang: dict[str, FlagValue] = {}  # SGLang's own server flags, passed through untouched
    environment: dict[str, str] = {}  # and environment variables, of local ones
    urls: list[str] = []
    # host:port where the driver listens for the plugins of external engines; local ones know it.
    link: str | None = None
    # Default: free ports.
    base_port: Annotated[int, msgspec.Meta(ge=1024, le=LAST_PORT)] | None = None
    start_timeout_s: Seconds = 600.0
    stall_timeout_s: Seconds = 120.0  # an engine with work and no progress for so long is stuck
    recovery_timeout_s: Seconds = 60.0  # how long a rollout waits while no engine answers
    api_key: str | None = None

    def flags(self) -> dict[str, FlagValue]:
        """The user's own SGLang flags, spelled as on a command line."""
        return {name.replace("_", "-"): value for name, value in self.sglang.items()}


class KvPoolConfig(Section, frozen=True):
    """The global KV pool (paper section 1): KV of a chunk waits there for the next engine.

    `mooncake` starts a local Mooncake, or joins the one at `master`; `file` is a folder that all
    engines see; `none`: a chunk on another engine prefills again.
    """

    backend: Literal["none", "mooncake", "file"] = "none"
    page_size: Positive = 64  # tokens; full pages only are shared
    host_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 2.0  # host KV tokens per device KV token
    memory: str = "4gb"  # of a local store node
    stores: Processes = 1  # local store nodes
    replicas: Processes = 1  # copies of a page, each on another store node
    protocol: Literal["tcp", "rdma"] = "tcp"
    device: str = ""  # RDMA devices, as Mooncake names them
    open_ports: bool = False  # Mooncake's transfer ports accept connections of other machines
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
    size = None if found is None else int(float(found[1]) * SIZE_UNITS[found[2]])
    if size is None or size > MAX_SIZE:
        raise ValueError(f"{text!r} is not a size such as 512mb or 4gb")
    return size


class DraftConfig(Section, frozen=True):
    """Grouped speculative decoding (paper section 3). `scope`: whose tokens an engine drafts from.

    `fleet`: all responses of the group, wherever they are decoded; `engine`: those that the engine
    decodes itself; `request`: the request's own.
    """

    scope: Literal["none", "request", "engine", "fleet"] = "none"
    max_draft_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 16  # a request and step
    # Continuations of a token, at most: 1 drafts chains. Where SGLang's attention backend verifies
    # chains only, chains are drafted.
    paths: Annotated[int, msgspec.Meta(ge=1, le=8)] = 4
    # host:port of a `seer-sgl drafthub`; default: one that is started with local engines.
    hub: str | None = None
    history: str | None = None  # JSONL samples of an earlier rollout of these prompts
    memory: str = "1gb"  # for tokens, on the hub and on each engine

    def memory_bytes(self) -> int:
        """`memory` in bytes. Raises ValueError when it is not a size."""
        return _size(self.memory)


Undivided = Literal["group_round_robin", "group_least_loaded", "request_round_robin"]
PolicyName = Literal["seer", "fcfs", "oracle", Undivided]
UNDIVIDED: tuple[str, ...] = get_args(Undivided)  # the baselines: all sent at once, never moved


class SchedulingConfig(Section, frozen=True):
    """How requests are divided, ordered and admitted (paper sections 1 and 2)."""

    policy: PolicyName = "seer"
    lengths: str | None = None  # JSONL of an earlier rollout: prior of `seer`, truth of `oracle`
    chunk_tokens: Positive = 8192
    divide: bool = True
    kv_ledger: bool = True  # False admits by count only: the baseline that retracts
    max_inflight_per_engine: Positive | None = None  # default: the engine's max_running_requests
    max_spread: Natural | None = None  # chunks in flight, most minus least, that count as balanced
    fetch_gap_tokens: Natural = 512  # a larger cache gap is fetched from the pool, not prefilled


class RolloutConfig(Section, frozen=True):
    """What to roll out. `seed` None draws one, which the report has."""

    prompts: str | None = None
    n_samples_per_prompt: Samples = 8
    max_prompts: Positive | None = None
    seed: Natural | None = None


class FleetConfig(NamedTuple):
    """The sections that describe a fleet of engines."""

    model: ModelConfig
    engines: EnginesConfig
    kv_pool: KvPoolConfig
    draft: DraftConfig


class Config(Section, frozen=True):
    """The whole tree."""

    model: ModelConfig = msgspec.field(default_factory=ModelConfig)
    engines: EnginesConfig = msgspec.field(default_factory=EnginesConfig)
    kv_pool: KvPoolConfig = msgspec.field(default_factory=KvPoolConfig)
    draft: DraftConfig = msgspec.field(default_factory=DraftConfig)
    scheduling: SchedulingConfig = msgspec.field(default_factory=SchedulingConfig)
    sampling: Sampling = Sampling()
    rollout: RolloutConfig = msgspec.field(default_factory=RolloutConfig)

    @property
    def fleet(self) -> FleetConfig:
        """The sections that describe the fleet."""
        return FleetConfig(self.model, self.engines, self.kv_pool, self.draft)
