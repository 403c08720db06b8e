"""The monitor's interface to the rollout loop."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from seer_sgl.engine_types import EngineLoad
from seer_sgl.types import Chunk

from .health import State


class EngineControl(Protocol):
    """What the monitor asks of the loop, and reports to it."""

    @property
    def idle(self) -> bool:
        """Whether no caller waits, or dispatch is paused."""

    @property
    def paused(self) -> bool:
        """Whether no chunk is dispatched; the engines may be paused too."""

    def set_available(self, engine_id: str, available: bool) -> None:
        """Marks an engine as available or out: chunks go to available engines only."""

    def interrupt(self, engine_id: str, why: str) -> None:
        """Takes every chunk back from an engine and sends it again, elsewhere if possible."""

    def resend_lost(self, engine_id: str) -> None:
        """Sends the chunk again that an engine has lost, if the loop can identify it."""

    def chunks_on(self, engine_id: str) -> Iterator[Chunk]:
        """Yields the chunks in flight on an engine."""

    def set_reads(self, engine_id: str, reads: bool) -> None:
        """Stops or resumes the reading of KV from the pool for the next chunks of an engine."""

    def take_back(self, chunks: Sequence[Chunk], why: str) -> None:
        """Takes chunks back that have not begun, and sends their requests again."""

    def loaded(self, engine_id: str, load: EngineLoad) -> None:
        """Records the load that an engine reported."""

    def elapsed(self, seconds: float) -> None:
        """Advances the time by `seconds`, counted in polls."""

    def weights_changed(self, engine_id: str, version: str) -> None:
        """Records that an engine serves other weights than at its last poll."""

    def health_changed(self, engine_id: str, state: State, why: str) -> None:
        """Records that an engine is in another state."""
