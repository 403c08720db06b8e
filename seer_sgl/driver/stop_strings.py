"""Stop strings that span a chunk boundary.

SGLang searches for a stop string in the tail of one call's output. It cannot find a stop that
begins in one chunk and ends in the next. So the driver checks the first tokens of every later chunk
again, with the window that an undivided call would have used (`Req._stop_match_tail_len`: the
longest stop in tokens, plus one).
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from seer_sgl.types import ChunkReply, Request, WeightSpan

from .tokenizer import Tokenizer

Decode = Callable[[Any], str]
Amend = Callable[[Request, ChunkReply], ChunkReply]  # returns the reply as it is to be recorded
MAX_RECHECKS = 1000


class StopRecheck:
    """The stop strings of a group. `stop_len` returns the number of tokens of a string."""

    def __init__(
        self, stops: Sequence[str], stop_len: Callable[[str], int], decode: Decode
    ) -> None:
        self._stops = list(stops)
        self._window = max(map(stop_len, stops), default=0) + 1
        self._decode = decode

    def __call__(self, before: Sequence[int], reply: ChunkReply) -> ChunkReply:
        """Returns `reply`, cut after the token that completes a stop string begun in `before`.

        `before`: the response so far, without the reply. Returns the reply itself if no stop string
        spans the boundary.
        """
        if not self._stops or not before:
            return reply
        tail = list(before[-self._window :])
        # Beyond the window's length, the engine itself has checked the same tokens.
        for count in range(1, min(len(reply.ids), self._window - 1) + 1):
            window = (tail + list(reply.ids[:count]))[-self._window :]
            text = self._decode(window)
            for stop in self._stops:
                if stop in text:
                    return _cut(reply, count, stop)
        return reply


class StopStrings:
    """The stop strings of all groups. `tokenizer` None: no group has stop strings."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        # By stop strings; cleared at MAX_RECHECKS, in case a caller keeps sending new ones.
        self._rechecks: dict[tuple[str, ...], StopRecheck] = {}

    def amend(self, request: Request, reply: ChunkReply) -> ChunkReply:
        """Returns the reply to a request's next chunk, cut after a boundary-spanning stop."""
        stops = tuple(request.sampling.stops())
        if not stops or request.generated == request.given:
            return reply
        before = request.response_ids[request.given :] if request.given else request.response_ids
        return self._recheck(stops)(before, reply)

    def _recheck(self, stops: tuple[str, ...]) -> StopRecheck:
        if stops not in self._rechecks:
            if self._tokenizer is None:
                raise ValueError("stop strings without a tokenizer")
            if len(self._rechecks) >= MAX_RECHECKS:
                self._rechecks.clear()
            self._rechecks[stops] = StopRecheck(
                stops, self._tokenizer.stop_len, self._tokenizer.decode
            )
        return self._rechecks[stops]


def _cut(reply: ChunkReply, count: int, stop: str) -> ChunkReply:
    spans: list[WeightSpan] = []
    left = count
    for span in reply.weight_spans:
        taken = min(span.tokens, left)
        if taken:
            spans.append(WeightSpan(span.version, taken))
        left -= taken
    return msgspec.structs.replace(
        reply,
        ids=reply.ids[:count],
        logprobs=reply.logprobs[:count],
        weight_spans=spans,
        finish="stop",
        matched=stop,
    )
