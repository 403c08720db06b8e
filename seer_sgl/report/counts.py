"""Counts while a fleet works: for the live progress of a rollout, and for the rollout server."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable

from typing_extensions import override

from seer_sgl.chunk_figures import Totals
from seer_sgl.driver.health import State
from seer_sgl.driver.observer import Observer
from seer_sgl.engine_types import EngineInfo, EngineLoad
from seer_sgl.errors import EngineError
from seer_sgl.types import ChunkResult

RATE_WINDOW_S = 10.0  # tok/s is the mean over this much of the past
IDLE = EngineLoad(used_tokens=0, progress=())
WITHOUT_SERVER = frozenset({State.DEAD, State.STARTING, State.QUARANTINED})


class EngineCounts:
    """The counts of one engine. `load`: its last report; that of an idle one before the first, and
    while it has no server."""

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self.load = IDLE
        self.totals = Totals()
        self.peak_tokens = 0

    @property
    def kv_share(self) -> float:
        """The share of its KV capacity in use."""
        return self.load.used_tokens / self.info.max_total_num_tokens

    @property
    def kv_peak(self) -> float:
        """The largest share of its KV capacity in use so far."""
        return self.peak_tokens / self.info.max_total_num_tokens


class FleetCounts(Observer):
    """Counts what came back from the engines. `errors`: lost chunks by kind (errors.py)."""

    def __init__(
        self, engines: Iterable[EngineInfo], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.engines = {info.engine_id: EngineCounts(info) for info in engines}
        self.totals = Totals()
        self.errors: Counter[str] = Counter()
        self._recent: deque[tuple[float, int]] = deque()
        self._began = clock()

    @override
    def grown(self, result: ChunkResult) -> None:
        figures, engine = result.figures, self.engines.get(result.chunk.engine_id)
        if figures is None or engine is None:
            return
        self.totals.add(figures)
        engine.totals.add(figures)
        self._recent.append((self._clock(), figures.tokens))
        self._forget_old()

    @override
    def lost(self, result: ChunkResult) -> None:
        error = result.error
        self.errors[error.kind if isinstance(error, EngineError) else "other"] += 1

    @override
    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        engine = self.engines.get(engine_id)
        if engine is not None:
            engine.load = load
            engine.peak_tokens = max(engine.peak_tokens, load.used_tokens)

    @override
    def health(self, engine_id: str, state: State, why: str, now: float) -> None:
        if engine_id in self.engines and state in WITHOUT_SERVER:
            self.engines[engine_id].load = IDLE

    @override
    def joined(self, info: EngineInfo, now: float) -> None:
        self.engines.setdefault(info.engine_id, EngineCounts(info))

    @property
    def drafts(self) -> bool:
        """Whether an engine drafts."""
        return any(engine.info.draft_tokens for engine in self.engines.values())

    @property
    def pooled(self) -> bool:
        """Whether an engine shares a KV pool."""
        return any(engine.info.pool is not None for engine in self.engines.values())

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the count."""
        return self._clock() - self._began

    def rate(self) -> float | None:
        """Returns the tokens per second, as a mean of the last RATE_WINDOW_S.

        Tokens count when their chunk returns. None if no chunk returned in that time.
        """
        self._forget_old()
        if not self._recent:
            return None
        return sum(tokens for _, tokens in self._recent) / min(RATE_WINDOW_S, self.elapsed_s)

    def _forget_old(self) -> None:
        begin = self._clock() - RATE_WINDOW_S
        while self._recent and self._recent[0][0] < begin:
            self._recent.popleft()
