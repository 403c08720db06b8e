"""The config tree. Sampling names are SGLang's own (sampling.py); the rest are the field's."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

import msgspec

from seer_sgl.bounds import Natural, Positive
from seer_sgl.types import Sampling

from .addresses import LAST_PORT

MOST_PROCESSES = 1024  # per kind and machine
MOST_SAMPLES = 1 << 20  # per prompt; each takes memory from the start

Processes = Annotated[int, msgspec.Meta(ge=1, le=MOST_PROCESSES)]
Samples = Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0)]
FlagValue = bool | int | float | str | list[int | float | str]

SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}) *([kmgt]?)i?b?")
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
MAX_SIZE = 1 << 60


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base class of every section of the tree."""


S = TypeVar("S", bound=Section)


def with_values(section: S, values: Mapping[str, Any]) -> S:
    """Returns the section with other values at the given key paths. The values are not checked."""
    for key, value in values.items():
        name, _, below = key.partition(".")
        inner = with_values(getattr(section, name), {below: value}) if below else value
        section = msgspec.structs.replace(section, **{name: inner})
    return section


class ModelConfig(Section, frozen=True):
    """The model in Hugging Face layout. `tokenizer_path` defaults to `path`."""

    path: str | None = None
    tokenizer_path: str | None = None
    # Run Python code that ships with the model, here and on the engines.
    trust_remote_code: bool = False


Cores = list[list[Natural]] | Literal["auto"] | None


class EnginesConfig(Section, frozen=True):
    """The SGLang servers: started here (`local`) or already running (`external`, by `urls`)."""

    launch: Literal["local", "external"] = "local"
    count: Processes = 1
    # CPU cores to pin each local engine to; auto: one core per engine, in turn.
    cores: Cores = None
    sglang: dict[str, FlagValue] = {}  # SGLang's own server flags, passed through unchanged
    environment: dict[str, str] = {}  # environment variables of local engines
    urls: list[str] = []
    # host:port where the driver listens for the plugins of external engines.
    link: str | None = None
    # Default: free ports.
    base_port: Annotated[int, msgspec.Meta(ge=1024, le=LAST_PORT)] | None = None
    start_timeout_s: Seconds = 600.0
    stall_timeout_s: Seconds = (
        120.0  # an engine with work but without progress for this long is stuck
    )
    recovery_timeout_s: Seconds = 60.0  # how long a rollout waits while no engine answers
    api_key: str | None = None

    def flags(self) -> dict[str, FlagValue]:
        """Returns the user's own SGLang flags, spelled as on a command line."""
        return {name.replace("_", "-"): value for name, value in self.sglang.items()}


class KvPoolConfig(Section, frozen=True):
    """The global KV pool (paper section 1). It stores the KV of a chunk for the next engine.

    `mooncake` starts a local Mooncake, or joins the one at `master`; `file` is a folder that all
    engines can access; `none`: a chunk on another engine is prefilled again.
    """

    backend: Literal["none", "mooncake", "file"] = "none"
    page_size: Positive = 64  # tokens; only full pages are shared
    host_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 2.0  # host KV tokens per device KV token
    memory: str = "4gb"  # per local store node
    stores: Processes = 1  # local store nodes
    replicas: Processes = 1  # copies of a page, each on another store node
    protocol: Literal["tcp", "rdma"] = "tcp"
    device: str = ""  # RDMA devices, under Mooncake's names
    open_ports: bool = False  # Mooncake's transfer ports accept connections from other machines
    master: str | None = None  # host:port of a Mooncake that already runs
    # For external engines: a name that no run with other weights uses in that pool.
    namespace: str | None = None
    ssd_path: str | None = (
        None  # folder where local store nodes write pages that memory cannot hold
    )
    ssd_size: str = "64gb"  # limit per store node there; the oldest pages are removed first
    directory: str | None = None  # folder of the file backend

    def memory_bytes(self) -> int:
        """Returns `memory` in bytes. Raises ValueError if it is not a size."""
        return _size(self.memory)

    def ssd_bytes(self) -> int:
        """Returns `ssd_size` in bytes. Raises ValueError if it is not a size."""
        return _size(self.ssd_size)


def _size(text: str) -> int:
    match = SIZE.fullmatch(text.lower().strip())
    size = None if match is None else int(float(match[1]) * SIZE_UNITS[match[2]])
    if size is None or size > MAX_SIZE:
        raise ValueError(f"{text!r} is not a size such as 512mb or 4gb")
    return size


class DraftConfig(Section, frozen=True):
    """Grouped speculative decoding (paper section 3). `scope`: the source of an engine's drafts.

    `fleet`: all responses of the group, on any engine; `engine`: the responses that the engine
    decodes itself; `request`: the request's own response.
    """

    scope: Literal["none", "request", "engine", "fleet"] = "none"
    max_draft_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 16  # per request and step
    # The most continuations of a token: 1 drafts chains. If SGLang's attention backend can verify
    # chains only, chains are drafted.
    paths: Annotated[int, msgspec.Meta(ge=1, le=8)] = 4
    # host:port of a `seer-sgl drafthub`; default: a hub that is started with local engines.
    hub: str | None = None
    history: str | None = None  # JSONL samples of an earlier rollout of these prompts
    memory: str = "1gb"  # for tokens, on the hub and on each engine

    def memory_bytes(self) -> int:
        """Returns `memory` in bytes. Raises ValueError if it is not a size."""
        return _size(self.memory)


Undivided = Literal["group_round_robin", "group_least_loaded", "request_round_robin"]
PolicyName = Literal["seer", "fcfs", "oracle", Undivided]
UNDIVIDED: tuple[str, ...] = get_args(Undivided)  # baselines: all requests sent at once, not moved


class SchedulingConfig(Section, frozen=True):
    """How requests are divided, ordered and admitted (paper sections 1 and 2)."""

    policy: PolicyName = "seer"
    # JSONL of an earlier rollout: the prior of `seer`, the true lengths of `oracle`.
    lengths: str | None = None
    chunk_tokens: Positive = 8192
    divide: bool = True
    kv_ledger: bool = True  # False admits by count only: the baseline that retracts
    max_inflight_per_engine: Positive | None = None  # default: the engine's max_running_requests
    max_spread: Natural | None = None  # largest spread of chunks in flight that counts as balanced
    fetch_gap_tokens: Natural = 512  # a larger cache gap is fetched from the pool, not prefilled


class RolloutConfig(Section, frozen=True):
    """The prompts and seed of a rollout. `seed` None: a random seed, which the report contains."""

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
