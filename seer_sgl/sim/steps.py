"""The times of an engine's forward passes: a roofline with a fixed overhead.

A decode step over a batch of B sequences with K tokens of KV in total takes

    overhead + B * overhead per row + max(weights read / bandwidth, B * FLOP / compute)
             + K * max(KV bytes per token / bandwidth, FLOP of attention / compute)

A verification of D drafts per sequence computes (1 + D) times as much, and reads once.

While the batch stays the same, K grows by a constant with every step, so any number of steps has a
closed form.
"""

import functools
import math

from .config import EngineConfig

FLOP_PER_PARAMETER = 2  # a multiplication and an addition


class StepTime:
    """Step times of one kind of engine, in seconds."""

    def __init__(self, engine: EngineConfig) -> None:
        self._engine = engine
        bandwidth = engine.bandwidth_gb_s * 1e9
        self._per_weight_gb = 1e9 / bandwidth
        self._per_kv_read = engine.kv_bytes_per_token / bandwidth
        self._per_kv_compute = engine.attention_mflop / engine.tflops * 1e-6
        flop = FLOP_PER_PARAMETER * engine.active_params_b * 1e9
        self.per_row_compute = flop / (engine.tflops * 1e12)
        self.per_prefill_token = 1 / engine.prefill_tok_s

    @functools.lru_cache(maxsize=1 << 16)  # noqa: B019 - lives as long as its engine
    def fixed(self, batch: int, drafts: float = 0) -> float:
        """Returns the time of a step without reading KV: `batch` sequences, each with `drafts`
        draft tokens to verify."""
        engine, rows = self._engine, batch * (1 + drafts)
        read = self._weights_gb(rows) * self._per_weight_gb
        draft_us = engine.draft_overhead_us
        if draft_us is None:
            draft_us = engine.row_overhead_us
        return (
            engine.overhead_ms * 1e-3
            + batch * (engine.row_overhead_us + drafts * draft_us) * 1e-6
            + max(read, rows * self.per_row_compute)
        )

    def attention(self, drafts: float = 0) -> float:
        """Returns the time per KV token of a sequence: it is read once, and every token to decode
        or to verify attends to it."""
        return max(self._per_kv_read, (1 + drafts) * self._per_kv_compute)

    def prefill(self, tokens: int, chunks: int = 1) -> float:
        """Returns the time of a pass that begins `chunks`: it prefills `tokens` and samples the
        first output tokens."""
        engine = self._engine
        read = self._weights_gb(tokens) * self._per_weight_gb
        fixed_s = (engine.overhead_ms + chunks * engine.chunk_ms) * 1e-3
        return fixed_s + max(read, tokens * self.per_prefill_token)

    def _weights_gb(self, rows: float) -> float:
        """Returns the weights that a pass over `rows` tokens reads, in GB. An expert is read if any
        token chose it."""
        engine = self._engine
        chosen = engine.experts_per_token / engine.experts
        return engine.weights_gb + engine.experts_gb * (1 - math.pow(1 - chosen, rows))


class Stretch:
    """Decode steps of a constant batch: the first takes `first` seconds, each later step `more`
    seconds longer than the one before."""

    def __init__(self, first: float, more: float) -> None:
        self._first = first
        self._more = more

    def seconds(self, steps: int) -> float:
        """Returns the total time of `steps` steps."""
        return steps * self._first + self._more * steps * (steps - 1) / 2

    def steps(self, seconds: float) -> int:
        """Returns the number of steps until `seconds` have passed; the last step is complete."""
        if seconds <= 0:
            return 0
        if self._more <= 0:
            count = seconds / self._first
        else:  # the root of seconds(count) = seconds
            half = self._first - self._more / 2
            count = (math.sqrt(half * half + 2 * self._more * seconds) - half) / self._more
        return math.ceil(count - 1e-9)
