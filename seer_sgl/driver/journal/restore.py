"""Restores the requests of a rollout to where a journal left them."""

from array import array
from collections.abc import Iterable, Sequence

import msgspec

from seer_sgl.types import (
    ChunkReply,
    Failure,
    Group,
    Request,
    RequestState,
    logprob_array,
    token_array,
)

from .blocks import Damaged
from .records import Ended, GivenUp, Record, Returned


class Restored(msgspec.Struct, kw_only=True):
    """What a journal has restored. `finished`: requests, in the order in which they finished."""

    finished: list[Request] = []
    continued: int = 0  # unfinished requests that have tokens
    tokens: int = 0  # of both


def restore(groups: Sequence[Group], records: Iterable[Record], started_at: float) -> Restored:
    """Applies the records of a journal to new requests, and returns what it restored.

    `started_at`: the zero of the rollout's times. Raises Damaged if a record does not fit its
    request; then some requests may have changed.
    """
    requests = [request for group in groups for request in group.requests]
    finished: list[Request] = []
    for record in records:
        if isinstance(record, Returned | Ended | GivenUp):
            if not 0 <= record.order < len(requests):
                raise Damaged(f"it has a request number {record.order} of {len(requests)}")
            request = requests[record.order]
            try:
                _apply(record, request, started_at)
            except ValueError as error:
                raise Damaged(str(error)) from error
            if request.state is RequestState.FINISHED and not isinstance(record, GivenUp):
                finished.append(request)
    left = [r for r in requests if r.generated and r.state is not RequestState.FINISHED]
    return Restored(
        finished=finished,
        continued=sum(not request.group.withdrawn for request in left),
        tokens=sum(request.generated for request in (*finished, *left)),
    )


def _apply(record: Returned | Ended | GivenUp, request: Request, started_at: float) -> None:
    """Applies one record. Raises ValueError if it does not fit the request."""
    if isinstance(record, GivenUp):
        request.group.withdrawn = True
        request.group.failure = Failure(record.kind, record.message)
        return
    if request.state is RequestState.FINISHED:
        raise ValueError(f"request {record.order} continues after its end")
    request.submitted_at = started_at + record.submitted_at
    if record.started_at is not None:
        request.started_at = started_at + record.started_at
    if isinstance(record, Ended):
        request.failure = record.failure
        request.finish(record.finish, record.matched, started_at + record.ended_at)
        return
    if record.seed != request.seed:
        raise ValueError(f"request {record.order} has another seed")
    reply = _reply(record)
    request.append(reply)
    request.engines.append(record.engine_id)
    request.chunk_lengths.append(len(reply.ids))
    if request.generated > request.max_response_len:
        raise ValueError(f"request {record.order} has {request.generated} tokens")
    if record.finish is not None:
        request.finish(record.finish, record.matched, started_at + record.returned_at)


def _reply(record: Returned) -> ChunkReply:
    return ChunkReply(
        ids=_array(token_array(), record.ids),
        logprobs=_array(logprob_array(), record.logprobs),
        weight_spans=record.weight_spans,
        finish=record.finish or "length",
        verify_steps=record.verify_steps,
        routed_experts=record.routed_experts,
        input_tokens=record.input_tokens,
    )


def _array(values: "array[int] | array[float]", content: bytes) -> "array":  # type: ignore[type-arg]
    values.frombytes(content)  # ValueError if its length is not a multiple of four
    return values
