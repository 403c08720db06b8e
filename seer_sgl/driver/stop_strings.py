"""String stops that span a chunk boundary.

SGLang looks for a stop string in the tail of one call's output. A stop that begins in one chunk
and ends in the next is invisible to it, so the first tokens of every later chunk are checked
again here with the window an undivided call would have used
(`Req._stop_match_tail_len`: longest stop in tokens, plus one).
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from seer_sgl.types import ChunkReply, WeightSpan

Decode = Callable[[Any], str]


class StopRecheck:
    """The stop strings of a rollout. `stop_len` gives the tokens of a string."""

    def __init__(
        self, stops: Sequence[str], stop_len: Callable[[str], int], decode: Decode
    ) -> None:
        self._stops = list(stops)
        self._window = max(map(stop_len, stops), default=0) + 1
        self._decode = decode

    def __call__(self, before: Sequence[int], reply: ChunkReply) -> ChunkReply:
        """`reply` cut after the token that completes a stop string begun in `before`.

        `before`: the response so far, without the reply. Returns the reply itself when nothing
        spans the boundary.
        """
        if not self._stops or not before:
            return reply
        tail = list(before[-self._window :])
        # From the window's own length on, the engine has seen the same tokens as we have.
        for count in range(1, min(len(reply.ids), self._window - 1) + 1):
            window = (tail + list(reply.ids[:count]))[-self._window :]
            text = self._decode(window)
            for stop in self._stops:
                if stop in text:
                    return _cut(reply, count, stop)
        return reply


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
