"""The parameters of a simulation: one YAML file a workload (configs/sim/).

Every value there has its reason beside it. bench/calibrate.py has what is fitted, and to what.
"""

from typing import Annotated

import msgspec

from seer_sgl.bounds import LARGEST_ID
from seer_sgl.config import Fraction, Natural, Positive, SchedulingConfig, Section

PAGE_SIZE = 64  # SGLang's default with a KV pool
MOST_REQUESTS = 100_000_000  # of a workload; each takes memory
Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_ID)]
Amount = Annotated[float, msgspec.Meta(gt=0.0)]
Rest = Annotated[float, msgspec.Meta(ge=0.0)]


class LengthsConfig(Section, frozen=True):
    """Response lengths: log-normal, cut off at `max`, their mean scaled to `mean` (tokens).

    `sigma`: of the logarithm; `group_share`: how much of its variance is a property of the prompt.
    """

    mean: Amount = 8000.0
    max: Tokens = 32768
    sigma: Rest = 1.0
    group_share: Fraction = 0.7
    seed: Natural = 1


class WorkloadConfig(Section, frozen=True):
    """What is rolled out: `groups` prompts, `n_samples_per_prompt` responses each."""

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
    # Before it admits a request, an engine sets so many tokens aside for what it will write
    # (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION). 0: it admits whatever fits now, as vLLM does.
    reserve_tokens: Natural = 4096
    weights_gb: Amount = 16.0  # read by every step
    experts_gb: Rest = 0.0  # weights of the experts; a step reads those its tokens chose
    experts: Positive = 1
    experts_per_token: Rest = 1.0
    active_params_b: Amount = 8.0
    kv_bytes_per_token: Amount = 131_072.0
    bandwidth_gb_s: Amount = 2010.0
    tflops: Amount = 400.0
    overhead_ms: Rest = 3.0  # of a step, whatever is in it: kernel launches, scheduling, sampling
    row_overhead_us: Rest = 10.0  # more of it for each sequence, and each draft to verify
    draft_overhead_us: Rest | None = None  # for each draft to verify, where that differs
    prefill_tok_s: Amount = 20_000.0


class PoolConfig(Section, frozen=True):
    """The global KV pool; `enabled: false`: a request that moves prefills again."""

    enabled: bool = True
    gb_s: Amount = 20.0  # into one engine
    latency_ms: Rest = 20.0  # of a fetch, however short
    store_ms: Rest = 30.0  # from a reply to its KV being in the pool


class SpeculationConfig(Section, frozen=True):
    """Grouped speculative decoding. `accept_length[i]`: mean tokens a step with `references[i]`
    responses of the same prompt to draft from (paper section 3, linear drafts)."""

    enabled: bool = False
    references: tuple[Natural, ...] = (0, 1, 5, 15)
    accept_length: tuple[Amount, ...] = (1.70, 2.04, 2.32, 2.53)
    draft_ms: Rest = 1.0  # of a step: drafting and sampling the drafts


class PaperRow(Section, frozen=True):
    """A published result: throughput in multiples of the baseline's, tail in parts of its tail."""

    throughput: Amount | None = None
    tail: Rest | None = None


class PaperConfig(Section, frozen=True):
    """What the paper measured. The baseline is what a workload is fitted to."""

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
    """Tokens of a KV page of the engines."""
    return PAGE_SIZE if config.pool.enabled else 1
