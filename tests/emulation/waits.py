"""How often the host waits for a forward pass before it launches the next one.

On a GPU such a wait is a gap: the device idles until the host has launched more. Here every pass
ends before its launch returns. So passes are counted: an event stands for the passes that were
launched before it was recorded, and waiting for one that has not been waited for is a gap.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from .counts import Counts

FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
LENGTHS = "sglang.srt.managers.overlap_utils.FutureMap.resolve_seq_lens_cpu"
STEP = "seer_sgl.plugin.speculation.worker.GroupedWorker.forward_batch_generation"


class Waits:
    """The passes of one process that were launched, and those that are known to have ended."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._launched = 0
        self._ended = 0
        self._gaps = 0  # before the step that comes next

    def launched(self, *_: object, **__: object) -> None:
        """A forward pass is launched."""
        self._launched += 1

    def record(self, event: Any) -> None:
        """An event is recorded."""
        event.emulated_launched = self._launched

    def result_waited_for(self, event: Any) -> None:
        """SGLang waits for results of a step, after it has launched the next one."""
        self._ended = max(self._ended, getattr(event, "emulated_launched", 0))

    def everything_waited_for(self) -> None:
        """We wait for all that was launched."""
        self._wait(self._launched)

    def lengths_waited_for(self, future_map: Any, batch: Any) -> None:
        """SGLang waits for the lengths after the step before, if they are not known."""
        carried = batch.spec_info
        if carried is not None and getattr(carried, "future_indices", None) is not None:
            self._wait(getattr(future_map.publish_ready, "emulated_launched", 0))

    def step(self, launch: Callable[..., Any], worker: Any, batch: Any, **options: Any) -> Any:
        """Launches a step. Counts the gaps before a decoding step: a plain one after a plain one,
        or another one."""
        decodes = batch.forward_mode.is_decode()
        result = launch(worker, batch, **options)
        gaps, self._gaps = self._gaps, 0
        if decodes:
            planner = worker._planner
            kind = "plain" if planner is None or planner._step.rests > 1 else "drafted"
            self._counts.decoded[kind] += 1
            self._counts.gaps[kind] += gaps
        return result

    def _wait(self, launched: int) -> None:
        if launched > self._ended:
            self._ended = launched
            self._gaps += 1


def install(counts: Counts) -> Waits:
    """Counts the waits of this process. The caller reports events and copies."""
    waits = Waits(counts)
    HookRegistry.register(FORWARD, waits.launched, HookType.BEFORE)
    HookRegistry.register(LENGTHS, waits.lengths_waited_for, HookType.BEFORE)
    HookRegistry.register(STEP, waits.step, HookType.AROUND)
    return waits
