"""`Call`: one requested completion. `Answer`: its result, filled in as its tokens arrive."""

import asyncio
from array import array

import msgspec

from seer_sgl.chunk_figures import Totals
from seer_sgl.rollout.images import NO_IMAGES, Images
from seer_sgl.types import (
    ChunkFigures,
    FinishReason,
    Request,
    Sampling,
    WeightSpan,
    logprob_array,
    spans_after,
    token_array,
)

from .errors import HttpError


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One response: what to generate, and what its client said about its siblings.

    `rid`: the client's name for it, unique among the calls in progress. `group_size`: how many
    responses the group will have in all, if known.
    """

    rid: str
    prompt_ids: "array[int]"
    sampling: Sampling
    seed: int
    stream: bool = False
    group_id: str | None = None
    group_size: int | None = None
    session_id: str | None = None
    images: Images = NO_IMAGES


class Answer:
    """The response to a call. Its tokens grow until it ends, with a finish reason or an error.

    `resumed`: the tokens of the request's response that were part of the call's prompt.
    """

    def __init__(self, call: Call, arrived_at: float) -> None:
        self.call = call
        self.arrived_at = arrived_at
        self.ended_at: float | None = None
        self.request: Request | None = None  # the newest one; None before the first
        self.resumed = 0
        self.ids = token_array()
        self.logprobs = logprob_array()
        self.totals = Totals()  # of its chunks
        self.first: ChunkFigures | None = None  # of its first chunk, whose input is the prompt
        self.engines: list[str] = []
        self.finish: FinishReason | None = None
        self.matched: int | str | None = None
        self.weight_spans: list[WeightSpan] = []
        self.error: HttpError | None = None
        self._updated = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether nothing more follows."""
        return self.finish is not None or self.error is not None

    async def wait_update(self) -> None:
        """Waits until tokens have arrived since the last call, or the response has ended."""
        await self._updated.wait()
        if not self.ended:
            self._updated.clear()

    async def end(self) -> None:
        """Waits until the response has ended. Raises its error if it has one."""
        while not self.ended:
            await self.wait_update()
        if self.error is not None:
            raise self.error

    @property
    def prompt_len(self) -> int:
        """The prompt tokens, those of images as the engines count them included."""
        images = 0 if self.request is None else self.request.group.image_tokens
        return len(self.call.prompt_ids) + images

    @property
    def cached(self) -> int:
        """The prompt tokens whose KV was cached."""
        first = self.first
        return 0 if first is None else first.device + first.host + first.storage

    def add(self, chunk: ChunkFigures, engine_id: str) -> None:
        """Adds the figures of a chunk that an engine has returned."""
        if self.first is None:
            self.first = chunk
        self.totals.add(chunk)
        self.engines.append(engine_id)

    def streamed(self, ids: "array[int]", logprobs: "array[float]") -> None:
        """Adds tokens that arrived before the end of their chunk."""
        self.ids.extend(ids)
        self.logprobs.extend(logprobs)
        self._updated.set()

    def finished(self, now: float) -> None:
        """Takes over the finished request's tokens and finish reason."""
        request = self.request
        assert request is not None
        self.ids = request.response_ids[self.resumed :]
        self.logprobs = request.logprobs[self.resumed :]
        self.weight_spans = spans_after(request.weight_spans, self.resumed)
        self.finish, self.matched = request.finish_reason or "abort", request.matched
        self.ended_at = now
        self._updated.set()

    def failed(self, error: HttpError, now: float) -> None:
        self.error, self.ended_at = error, now
        self._updated.set()
