"""What has run in an emulated scheduler, as a part of SGLang's `/server_info`."""

from collections import Counter
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from seer_sgl.plugin.hook import SCHEDULER

KEY = "emulation"  # in `internal_states` of `/server_info`
EAGER = "sglang.srt.model_executor.runner.eager_runner.EagerRunner.execute"


class Counts:
    """The counters of one process. Keys are strings, as in JSON."""

    def __init__(self) -> None:
        self.loops: Counter[str] = Counter()  # starts, by event loop
        self.captured: Counter[str] = Counter()  # graphs, by width
        self.replayed: Counter[str] = Counter()  # replays, by width
        self.late = 0  # copies to the host that arrived late
        self.padded = 0  # replays of a graph that is larger than the batch
        self.eager: Counter[str] = Counter()  # steps without a graph, by forward mode
        self.decoded: Counter[str] = Counter()  # steps, by kind (waits.py)
        self.gaps: Counter[str] = Counter()  # waits before these steps, by kind

    def report(self) -> dict[str, Any]:
        """Returns the counters as JSON."""
        return dict(vars(self))


def install(counts: Counts) -> None:
    """Counts event loops and steps without graphs, and adds the counters to the report."""
    for name in ("event_loop_overlap", "event_loop_normal"):
        HookRegistry.register(f"{SCHEDULER}.{name}", _count(counts, name), HookType.BEFORE)

    def runs(_: object, forward_batch: Any, *__: object, **___: object) -> None:
        counts.eager[forward_batch.forward_mode.name] += 1

    HookRegistry.register(EAGER, runs, HookType.BEFORE)

    def add(result: Any, *_: object, **__: object) -> Any:
        result.internal_state[KEY] = counts.report()
        return result

    HookRegistry.register(f"{SCHEDULER}.get_internal_state", add, HookType.AFTER)


def _count(counts: Counts, name: str) -> Any:
    def begins(*_: object, **__: object) -> None:
        counts.loops[name] += 1

    return begins
