"""The config tree. Sampling names are SGLang's own; the rest are the field's (README)."""

import re
from typing import Annotated, Literal, get_args

import msgspec

from .addresses import LAST_PORT

LARGEST = (1 << 63) - 1  # what Python's own counters and JSON readers take
LARGEST_ID = (1 << 31) - 1  # token ids are int32 in SGLang
MOST_PROCESSES = 1024  # of one kind on one machine
MOST_SAMPLES = 1 << 20  # of a prompt; each takes memory from the start

Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Processes = Annotated[int, msgspec.Meta(ge=1, le=MOST_PROCESSES)]
Samples = Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0)]
FlagValue = bool | int | float | str | list[int | float | str]

SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}) *([kmgt]?)i?b?")
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
MAX_SIZE = 1 << 60


class Section(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of every part of the tree."""


class ModelConfig(Section):
    """The model in Hugging Face layout. `tokenizer_path` defaults to `path`."""

    path: str | None = None
    tokenizer_path: str | None = None
    # Run Python code that comes with the model, here and on the engines that are started with it.
    trust_remote_code: bool = False


class EnginesConfig(Section):
    """The SGLang servers: started here (`local`) or already running (`external`, by `urls`)."""

    launch: Literal["local", "external"] = "local"
    count: Processes = 1
    # CPU cores to pin each local engine to; auto: one each, in turn.
    cores: list[list[Natural]] | Literal["auto"] | None = None
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


class KvPoolConfig(Section):
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


class DraftConfig(Section):
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
PolicyName = Literal["seer", "no_context", "oracle", Undivided]
UNDIVIDED: tuple[str, ...] = get_args(Undivided)  # the baselines: all sent at once, never moved


class SchedulingConfig(Section):
    """How requests are divided, ordered and admitted (paper sections 1 and 2)."""

    policy: PolicyName = "seer"
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
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=LARGEST_ID)] = -1
    min_p: Fraction = 0.0
    stop: str | list[str] = []
    stop_token_ids: list[TokenId] = []
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
    n_samples_per_prompt: Samples = 8
    max_prompts: Positive | None = None
    seed: Natural | None = None


class Config(Section):
    """The whole tree."""

    model: ModelConfig = msgspec.field(default_factory=ModelConfig)
    engines: EnginesConfig = msgspec.field(default_factory=EnginesConfig)
    kv_pool: KvPoolConfig = msgspec.field(default_factory=KvPoolConfig)
    draft: DraftConfig = msgspec.field(default_factory=DraftConfig)
    scheduling: SchedulingConfig = msgspec.field(default_factory=SchedulingConfig)
    sampling: SamplingConfig = msgspec.field(default_factory=SamplingConfig)
    rollout: RolloutConfig = msgspec.field(default_factory=RolloutConfig)
