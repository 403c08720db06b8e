"""The parameters of a simulation: one YAML file per workload (configs/sim/).

Every value in these files has a comment with its reason. bench/calibrate.py fits some of them.
"""

from typing import Annotated

import msgspec

from seer_sgl.bounds import LARGEST_ID, Fraction, Natural, Positive
from seer_sgl.config import SchedulingConfig, Section

PAGE_SIZE = 64  # SGLang's default with a KV pool
MOST_REQUESTS = 100_000_000  # per workload; each takes memory
Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_ID)]
DraftCount = Annotated[int, msgspec.Meta(ge=1, le=64)]
Amount = Annotated[float, msgspec.Meta(gt=0.0, le=1e12)]
Rest = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class LengthsConfig(Section, frozen=True):
    """Response lengths: log-normal, cut off at `max`, their mean scaled to `mean` (tokens).

    `sigma`: standard deviation of the logarithm; `group_share`: the share of its variance that the
    prompt determines.
    """

    mean: Amount = 8000.0
    max: Tokens = 32768
    sigma: Annotated[float, msgspec.Meta(ge=0.0, le=20.0)] = 1.0
    group_share: Fraction = 0.7
    seed: Natural = 1


class WorkloadConfig(Section, frozen=True):
    """The workload: `groups` prompts with `n_samples_per_prompt` responses each."""

    groups: Count = 64
    n_samples_per_prompt: Count = 8
    prompt_tokens: Tokens = 512
    lengths: LengthsConfig = msgspec.field(default_factory=LengthsConfig)


class EngineConfig(Section, frozen=True):
    """`count` equal engines. Bytes, bandwidth and FLOP are those of all GPUs of one engine.

    Defaults: an 8B dense model in bf16 on one H800 at 60 % of its bandwidth.
    """

    count: Count = 8
    kv_tokens: Positive = 400_000  # KV capacity, SGLang's max_total_num_tokens
    max_running_requests: Positive = 1024
    # Tokens that an engine reserves for a request's output when it admits the request
    # (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION). 0: it admits every request that fits now (vLLM).
    reserve_tokens: Natural = 4096
    weights_gb: Amount = 16.0  # read by every step
    experts_gb: Rest = 0.0  # expert weights; a step reads only the experts of its tokens
    experts: Positive = 1
    experts_per_token: Rest = 1.0
    active_params_b: Amount = 8.0
    kv_bytes_per_token: Amount = 131_072.0
    attention_mflop: Rest = 0.52  # millions, of a query token and a KV token
    bandwidth_gb_s: Amount = 2010.0
    tflops: Amount = 400.0
    overhead_ms: Rest = 3.0  # fixed, per step: kernel launches, scheduling, sampling
    row_overhead_us: Rest = 10.0  # additional, per sequence and per draft to verify
    draft_overhead_us: Rest | None = None  # per draft to verify, if it differs
    chunk_ms: Rest = 0.0  # additional, per chunk that begins: HTTP and caches on the same core
    prefill_tok_s: Amount = 20_000.0


class PoolConfig(Section, frozen=True):
    """The global KV pool; `enabled: false`: a request that moves is prefilled again.

    `capacity_gb`: of the whole pool; None: unlimited. A write to a full pool evicts the oldest KV.
    """

    enabled: bool = True
    capacity_gb: Amount | None = None
    gb_s: Amount = 20.0  # into one engine
    latency_ms: Rest = 20.0  # fixed, per fetch
    store_ms: Rest = 30.0  # from a reply until its KV is in the pool


class SpeculationConfig(Section, frozen=True):
    """Grouped speculative decoding. `accept_length[i]`: mean tokens per step with `references[i]`
    responses of the same prompt to draft from (paper section 3, linear drafts).

    `drafts`: per sequence in every verification, padding included, and the KV that a request has
    reserved for them; None: the best number, at most 8. `accept_length` is that of `drafts`, or
    else of 8. Where it is faster, a step is plain.

    `step_cpu_ms`, `draft_cpu_us`, `draft_kv_ns`: time that drafting, choosing and bookkeeping add
    to a verified step, per draft to verify, and per draft and KV token that it attends to, because
    no other work hides it. Guesses after the CPU machine; the last one only counts on CPUs.
    """

    enabled: bool = False
    drafts: DraftCount | None = None
    step_cpu_ms: Rest = 3.0
    draft_cpu_us: Rest = 4.0
    draft_kv_ns: Rest = 0.0
    references: tuple[Natural, ...] = (0, 1, 5, 15)
    accept_length: tuple[Amount, ...] = (1.70, 2.04, 2.32, 2.53)


class PaperRow(Section, frozen=True):
    """A published result: throughput and tail as multiples of the baseline's."""

    throughput: Amount | None = None
    tail: Rest | None = None


class PaperConfig(Section, frozen=True):
    """The paper's measurements. A workload is fitted to the baseline."""

    wall_s: Amount | None = None
    tail_s: Amount | None = None
    preemptions: Positive | None = None
    idle_fraction: Fraction | None = None
    rows: dict[str, PaperRow] = msgspec.field(default_factory=dict)


class SimConfig(Section, frozen=True):
    """The whole tree."""

    workload: WorkloadConfig = msgspec.field(default_factory=WorkloadConfig)
    engine: EngineConfig = msgspec.field(default_factory=EngineConfig)
    pool: PoolConfig = msgspec.field(default_factory=PoolConfig)
    scheduling: SchedulingConfig = msgspec.field(default_factory=SchedulingConfig)
    speculation: SpeculationConfig = msgspec.field(default_factory=SpeculationConfig)
    paper: PaperConfig = msgspec.field(default_factory=PaperConfig)


def page_size(config: SimConfig) -> int:
    """Returns the tokens per KV page of the engines."""
    return PAGE_SIZE if config.pool.enabled else 1
