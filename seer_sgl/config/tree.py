"""The config tree. Sampling names are SGLang's own (sampling.py); the rest are the field's."""

import re
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec

from seer_sgl.bounds import Natural, Positive
from seer_sgl.types import OnFailure, Sampling

from .addresses import LAST_PORT
from .engines import Engines, LocalEngines
from .section import Processes, Seconds, Section

MOST_SAMPLES = 1 << 20  # per prompt; each takes memory from the start

Samples = Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)]

SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}) *([kmgt]?)i?b?")
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
MAX_SIZE = 1 << 60


def bytes_of(text: str) -> int:
    """Returns a size in bytes. Raises ValueError if it is not one."""
    match = SIZE.fullmatch(text.lower().strip())
    size = None if match is None else int(float(match[1]) * SIZE_UNITS[match[2]])
    if size is None or size > MAX_SIZE:
        raise ValueError(f"{text!r} is not a size such as 512mb or 4gb")
    return size


class ModelConfig(Section, frozen=True):
    """The model in Hugging Face layout. `tokenizer_path` defaults to `path`."""

    path: str | None = None
    """Model folder in Hugging Face layout, or a hub id."""
    tokenizer_path: str | None = None
    """Tokenizer, if it is not in `path`."""
    trust_remote_code: bool = False
    """Run Python code that ships with the model: of its tokenizer in the driver, and on engines
    that are started with this config."""


class KvPoolConfig(Section, frozen=True):
    """The global KV pool (paper section 1). It stores the KV of a chunk for the next engine."""

    backend: Literal["none", "auto", "mooncake", "file"] = "none"
    """`mooncake` starts a local Mooncake or joins the one at `master`; `file` uses a folder that
    all engines can access; `auto`, for local engines: `mooncake` where it can run, else `file`;
    `none`: a chunk that moves is prefilled again."""
    page_size: Positive = 64
    """Tokens of a page; only full pages are shared."""
    host_ratio: Annotated[float, msgspec.Meta(gt=0.0)] | None = None
    """Host KV tokens per device KV token (SGLang's `hicache-ratio`). Default: 1.1 on a machine with
    a GPU, else 2.0. At most 1 only with `engines.sglang.hicache-host-memory-mode: buffer_only`,
    where the host keeps no copies."""
    memory: str = "4gb"
    """Memory of a local store node."""
    stores: Processes = 1
    """Store nodes to start, here or on the Ray cluster of the engines."""
    protocol: Literal["tcp", "rdma"] = "tcp"
    """Mooncake's transport."""
    device: str = ""  # RDMA devices, under Mooncake's names
    """RDMA devices, under Mooncake's names."""
    open_ports: bool = False  # Mooncake's transfer ports accept connections from other machines
    """Leave Mooncake's ports of a local fleet open to other machines, where Linux cannot keep them
    on loopback."""
    master: str | None = None
    """host:port of a Mooncake master that already runs. Default: started here."""
    namespace: str | None = None
    """For external engines: a name for the pages of this run. Runs of one name share the pages of
    equal weights. Default: drawn."""
    directory: str | None = None
    """Folder of the file backend. Default for local engines: a temporary folder beside their
    logs."""


class DraftConfig(Section, frozen=True):
    """Grouped speculative decoding (paper section 3)."""

    scope: Literal["none", "request", "engine", "fleet"] = "none"
    """Source of an engine's drafts. `fleet`: all responses of the group, on any engine; `engine`:
    the responses that it decodes itself; `request`: the request's own response; `none`: no
    speculative decoding."""
    max_draft_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 16
    """Draft tokens per request and step."""
    paths: Annotated[int, msgspec.Meta(ge=1, le=8)] | None = None
    """The most continuations of a token; 1 drafts chains. If SGLang's attention backend can verify
    chains only, chains are drafted. Default: 4 on a CPU, 1 on a GPU, where moving the KV of trees
    takes a millisecond per step."""
    hub: str | None = None
    """host:port of a `seer-sgl drafthub`, or of several, separated by commas and in the same order
    everywhere; each serves a part of the groups. The token is in `SEER_SGL_LINK_TOKEN`. Default:
    one hub per 64 engines, started with local engines. External engines with scope `fleet` need
    it."""
    history: str | None = None
    """`samples.jsonl` of an earlier rollout of these prompts, to draft from."""
    memory: str = "1gb"
    """Memory for tokens: on the hub (4 bytes per token) and on each engine (100). Groups that no
    engine runs are removed first, the longest unused first."""


UndividedPolicy = Literal["group_round_robin", "group_least_loaded", "request_round_robin"]
PolicyName = Literal["seer", "seer_published", "fcfs", "oracle", UndividedPolicy]
# Baselines: all requests are sent at once, and stay on their engine.
UNDIVIDED: tuple[str, ...] = get_args(UndividedPolicy)


class SchedulingConfig(Section, frozen=True):
    """How requests are divided, ordered and admitted (paper sections 1 and 2)."""

    policy: PolicyName = "seer"
    """The order of requests, and their placement ([policies](concepts.md#policy)). `group_*` and
    `request_*` are baselines."""
    lengths: str | None = None
    """JSONL with the lengths of an earlier rollout of these prompts: its `samples.jsonl`, or lines
    `{"prompt_ids" or "group_id", "lengths": [...]}`. The prior of `seer` and `seer_published`,
    the true lengths of `oracle`."""
    chunk_tokens: Positive = 8192
    """Token budget of a chunk. With a KV pool, which makes moves cheap, 2048 is better
    ([simulated](simulator.md))."""
    divide: bool = True
    """False: send requests undivided, for comparison."""
    kv_ledger: bool = True
    """False: admit by count only, for comparison; SGLang then preempts requests."""
    max_inflight_per_engine: Positive | None = None  # default: the engine's max_running_requests
    """Most chunks in flight per engine. Default: the engine's `max_running_requests`."""
    max_spread: Natural | None = None
    """Engines whose chunks in flight differ by no more count as balanced. Default: an eighth of
    what the busiest engine runs, at most 32."""
    fetch_gap_tokens: Natural = 512
    """A larger gap in the cache is fetched from the pool; a smaller one is prefilled."""


class RolloutConfig(Section, frozen=True):
    """The prompts and the seed of a rollout, and what its failures cost."""

    prompts: str | None = None
    """Prompts file ([format](getting-started.md#your-own-prompts))."""
    n_samples_per_prompt: Samples = 8
    """Samples per prompt."""
    max_prompts: Positive | None = None
    """Use only the first lines of the file."""
    seed: Natural | None = None
    """Seed that every request is seeded from. Default: drawn; the report contains it."""
    journal: str | None = None
    """Folder that stores every returned chunk, for `--resume` after a crash
    ([Journal](journal.md)). Default: none."""
    on_failure: OnFailure = "group"
    """What is given up when a request fails for good: `group`: all samples of its prompt; `sample`:
    that sample alone, which comes back with the tokens so far and its `failure`."""
    max_engine_kills: Annotated[int, msgspec.Meta(ge=2)] = 2
    """A request is given up if so many engines died while they ran it; one more if another
    request was on the last of them ([suspects](failure.md#requests-that-engines-die-of))."""


class ImagesConfig(Section, frozen=True):
    """The images that prompts may have ([Images](images.md))."""

    folder: str | None = None
    """Folder of the image files that prompts may name; a name is relative to it. Default: prompts
    name no files."""
    http: bool = False
    """Fetch images from the http and https addresses that prompts name."""
    most: Positive = 16
    """Most images of a prompt."""
    max_pixels: Positive = 50_000_000
    """Most pixels of an image, width times height. A larger one is not decoded."""


class ServerConfig(Section, frozen=True):
    """The rollout server, `seer-sgl serve`."""

    host: str = "127.0.0.1"
    """Address to listen on. One beyond loopback needs a token."""
    port: Annotated[int, msgspec.Meta(ge=0, le=LAST_PORT)] = 30000
    """Port to listen on; 0: a free one, which the log names."""
    api_key: str | None = None
    """Bearer token of clients. Default: `SEER_SGL_SERVER_KEY`."""
    admin_api_key: str | None = None
    """Bearer token of the control plane and of `/workers`. Default: `SEER_SGL_ADMIN_KEY`; without
    one, `api_key` opens these too."""
    group_window_s: Annotated[float, msgspec.Meta(ge=0.0)] = 5.0
    """Requests with equal prompts join one group until it has been idle for so many seconds; 0:
    each request is a group of its own, unless it names a `group_id`."""
    session_timeout_s: Seconds = 600.0
    """Seconds that a session keeps its KV in the pool after a turn, and that a group with aborted
    responses waits for their continuations."""
    max_body: str = "64mb"
    """Largest body of a request."""
    max_requests: Positive = 65536
    """Most responses in progress, all unfinished ones of rollouts included; beyond, clients get
    HTTP 429."""
    drain_s: Annotated[float, msgspec.Meta(ge=0.0)] = 10.0
    """Seconds that running requests have to finish when the server is stopped; then they end as
    `abort` with the tokens they have. New ones get HTTP 503 meanwhile. Rollouts are not waited
    for."""


class FleetConfig(NamedTuple):
    """The sections that describe a fleet of engines."""

    model: ModelConfig
    engines: Engines
    kv_pool: KvPoolConfig
    draft: DraftConfig


class Config(Section, frozen=True):
    """The whole tree."""

    model: ModelConfig = msgspec.field(default_factory=ModelConfig)
    engines: Engines = msgspec.field(default_factory=LocalEngines)
    kv_pool: KvPoolConfig = msgspec.field(default_factory=KvPoolConfig)
    draft: DraftConfig = msgspec.field(default_factory=DraftConfig)
    scheduling: SchedulingConfig = msgspec.field(default_factory=SchedulingConfig)
    sampling: Sampling = Sampling()
    rollout: RolloutConfig = msgspec.field(default_factory=RolloutConfig)
    images: ImagesConfig = msgspec.field(default_factory=ImagesConfig)
    server: ServerConfig = msgspec.field(default_factory=ServerConfig)

    @property
    def fleet(self) -> FleetConfig:
        """The sections that describe the fleet."""
        return FleetConfig(self.model, self.engines, self.kv_pool, self.draft)
