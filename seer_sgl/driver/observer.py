"""The events of a run, in the order in which they can happen to a request."""

from array import array

from seer_sgl.types import (
    Chunk,
    ChunkResult,
    EngineInfo,
    EngineLoad,
    Failure,
    Group,
    Request,
    Sample,
)


class Observer:
    """Receives the events of one run; override those of interest. Called between two awaits.

    Times are seconds on the driver's clock.
    """

    def sent(self, chunk: Chunk, now: float) -> None:
        """A chunk went to its engine."""

    def streamed(self, request: Request, ids: "array[int]", logprobs: "array[float]") -> None:
        """Tokens of a watched request have come; they are final, and not yet part of it."""

    def grown(self, result: ChunkResult) -> None:
        """A chunk came back with a reply, and its request has grown by it."""

    def lost(self, result: ChunkResult) -> None:
        """A chunk came back with an error; its request is what it was."""

    def stored(self, request: Request, whole: bool, now: float) -> None:
        """The KV of the request's newest chunk is in the pool, or as much as there will be."""

    def finished(self, request: Request, sample: Sample) -> None:
        """A request is complete; its sample is in its group."""

    def closed(self, group: Group, failure: Failure | None) -> None:
        """Nothing of the group is sent again; without a failure it has all of its samples."""

    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        """An engine reported how busy it is."""

    def joined(self, info: EngineInfo, now: float) -> None:
        """An engine joined the fleet."""

    def left(self, engine_id: str, now: float) -> None:
        """An engine left the fleet."""
