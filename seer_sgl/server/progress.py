"""Whether the engines work: tokens that arrive, and load reports that change."""

from array import array
from typing import Any

from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.engine_types import EngineLoad
from seer_sgl.types import ChunkResult, Request


class SignsOfWork(Observer):
    """Counts the signs of work of all engines. It observes all runs."""

    def __init__(self) -> None:
        self.count = 0
        self._reported: dict[str, tuple[Any, ...]] = {}  # engine id -> newest figures

    @override
    def grown(self, result: ChunkResult) -> None:
        self.count += result.reply is not None and not result.reply.tokenless

    @override
    def streamed(self, request: Request, ids: "array[int]", logprobs: "array[float]") -> None:
        self.count += 1

    @override
    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        before = self._reported.get(engine_id, load.progress)
        self._reported[engine_id] = load.progress
        self.count += before != load.progress

    @override
    def left(self, engine_id: str, now: float) -> None:
        self._reported.pop(engine_id, None)
