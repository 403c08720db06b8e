"""The CPU time of the scheduler's thread per decoding step, by part, for full batches.

On a GPU, what a part costs the host delays the GPU if it lies between the tokens of a step and the
launch of the next one, as drafting does; the rest runs while the GPU computes.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from .counts import SCHEDULER, Counts

PARTS = {
    "drafting": "seer_sgl.plugin.speculation.planner.Planner.plan",
    "layout": "seer_sgl.plugin.speculation.worker.layout_of",
    "mask": "seer_sgl.plugin.speculation.worker.attention_mask",
    "receiving": f"{SCHEDULER}.ingest_requests",
    "next batch": f"{SCHEDULER}.get_next_batch_to_run",
    "results": f"{SCHEDULER}.process_batch_result",
}


class StepTimes:
    """Adds the parts of each step to the counts if this batch and the next are full.

    full: requests in a full batch.
    """

    def __init__(self, counts: Counts, full: int) -> None:
        self._counts = counts
        self._least = full
        self._step: dict[str, float] = defaultdict(float)  # seconds by part
        self._full = False

    def spent(self, part: str, seconds: float) -> None:
        """Adds seconds to a part of the step under way."""
        self._step[part] += seconds

    def begins(self, batch: Any) -> None:
        """Ends the step under way, because `batch` runs next."""
        full = batch.forward_mode.is_decode() and len(batch.reqs) >= self._least
        if full and self._full:
            self._counts.timed_steps += 1
            for part, seconds in self._step.items():
                self._counts.host_s[part] += seconds
        self._step.clear()
        self._full = full


def install(counts: Counts, full: int) -> None:
    """Measures every part of the scheduler's steps."""
    times = StepTimes(counts, full)

    def timed(part: str) -> Callable[..., Any]:
        def around(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                times.spent(part, time.thread_time() - began)

        return around

    for part, target in PARTS.items():
        HookRegistry.register(target, timed(part), HookType.AROUND)

    def begins(_: object, batch: Any, *__: object, **___: object) -> None:
        times.begins(batch)

    HookRegistry.register(f"{SCHEDULER}.run_batch", begins, HookType.BEFORE)
