"""The events of a run, in the order in which they can happen to a request."""

from array import array
from collections.abc import Sequence

from seer_sgl.engine_types import EngineInfo, EngineLoad
from seer_sgl.types import Chunk, ChunkResult, Failure, Group, Request, Sample

from .health import State


class Observer:
    """Receives the events of one run, or of all runs (`Driver.observe`).

    Subclasses override the methods they need. The loop calls the methods between two awaits. Times
    are seconds on the driver's clock.
    """

    def submitted(self, requests: Sequence[Request], now: float) -> None:
        """The driver accepted requests of one group; it sends them when engines have room."""

    def sent(self, chunk: Chunk, now: float) -> None:
        """A chunk went to its engine."""

    def streamed(self, request: Request, ids: "array[int]", logprobs: "array[float]") -> None:
        """Tokens of a streaming request arrived; they are final, but not yet in the request."""

    def grown(self, result: ChunkResult) -> None:
        """A chunk came back with a reply; its tokens are in the request."""

    def lost(self, result: ChunkResult) -> None:
        """A chunk came back with an error; its request is unchanged."""

    def stored(self, request: Request, complete: bool, after_s: float, now: float) -> None:
        """The KV of the request's newest chunk is in the pool: all of it if `complete`.

        after_s: seconds since the chunk came back.
        """

    def finished(self, request: Request, sample: Sample) -> None:
        """A request is complete; its sample is in its group."""

    def closed(self, group: Group, failure: Failure | None) -> None:
        """No chunk of the group is sent any more; without a failure it has all its samples."""

    def ended(self, caller: str, now: float) -> None:
        """A run of this caller has ended. Only observers of all runs receive it."""

    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        """An engine reported its load."""

    def weights_changed(self, engine_id: str, version: str, now: float) -> None:
        """An engine serves weights `version`, which it did not at its last poll."""

    def health(self, engine_id: str, state: State, why: str, now: float) -> None:
        """An engine is in this state from now on; at the start of a run, once per engine."""

    def joined(self, info: EngineInfo, now: float) -> None:
        """An engine joined the fleet."""

    def left(self, engine_id: str, now: float) -> None:
        """An engine left the fleet."""
