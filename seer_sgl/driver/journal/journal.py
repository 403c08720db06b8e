"""The journal as an observer of a run: it appends every returned chunk."""

from collections.abc import Sequence

from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.types import ChunkResult, Failure, FailureKind, Group, Request, RequestState, Sample

from .facts import digest, limits_of
from .records import Complete, Ended, Extended, GivenUp, Record, Returned, encode
from .writer import BlockWriter


class Journal(Observer):
    """Stores the returned chunks of one run. `started_at`: the zero of its times.

    A group that its caller left is not given up: a later run continues it.
    """

    def __init__(self, writer: BlockWriter, started_at: float) -> None:
        self._writer = writer
        self._started_at = started_at
        self._kept: set[int] = set()  # requests whose end is written and not yet reported
        self._given_up: set[str] = set()  # groups of which that is written, by uid

    @property
    def error(self) -> str | None:
        """The reason why the journal is incomplete; None while it is complete."""
        return self._writer.error

    def restored(self, groups: Sequence[Group]) -> None:
        """Notes which ends the journal has already, before the driver reports them again."""
        for group in groups:
            if group.failure is not None:
                self._given_up.add(group.uid)
            finished = (r for r in group.requests if r.state is RequestState.FINISHED)
            self._kept.update(request.order for request in finished)

    def extend(self, groups: Sequence[Group]) -> None:
        """Appends that groups were added, before their first chunk is sent."""
        self._append(Extended(groups=list(map(digest, groups)), limits=limits_of(groups)))

    def complete(self, report: bytes) -> None:
        """Appends that every group is complete or given up."""
        self._append(Complete(report=report))

    def close(self) -> bool:
        """Writes what waits; returns whether the file is closed, as `BlockWriter.close`."""
        return self._writer.close()

    @override
    def grown(self, result: ChunkResult) -> None:
        reply, chunk = result.reply, result.chunk
        request = chunk.request
        if reply is None or request.group.withdrawn:
            return
        # A request that failed for good may have tokens of its last chunk; its end follows.
        ended = request.state is RequestState.FINISHED and request.failure is None
        if ended:
            self._kept.add(request.order)
        self._append(
            Returned(
                order=request.order,
                seed=request.seed,
                engine_id=chunk.engine_id,
                ids=reply.ids.tobytes(),
                logprobs=reply.logprobs.tobytes(),
                weight_spans=reply.weight_spans,
                verify_steps=reply.verify_steps,
                submitted_at=self._since(request.submitted_at),
                started_at=self._since(request.started_at or 0.0),
                returned_at=self._since(result.now),
                finish=request.finish_reason if ended else None,
                matched=request.matched if ended else None,
                routed_experts=reply.routed_experts,
                input_tokens=reply.input_tokens,
            )
        )

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        if request.order in self._kept:
            self._kept.remove(request.order)
            return
        if request.group.withdrawn:  # with the whole group
            return
        started_at = None if request.started_at is None else self._since(request.started_at)
        self._append(
            Ended(
                order=request.order,
                submitted_at=self._since(request.submitted_at),
                started_at=started_at,
                ended_at=self._since(request.finished_at or 0.0),
                finish=request.finish_reason or "abort",
                matched=request.matched,
                failure=request.failure,
            )
        )

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        if failure is None or failure.kind is FailureKind.LEFT or group.uid in self._given_up:
            return
        first = group.requests[0].order
        self._append(GivenUp(order=first, kind=failure.kind, message=failure.message))

    def _append(self, record: Record) -> None:
        self._writer.append(encode(record))

    def _since(self, at: float) -> float:
        # Rounded like the times of a sample, so that a restored one is the same.
        return round(at - self._started_at, 6)
