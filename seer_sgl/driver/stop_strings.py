"""Stop strings that span a chunk boundary.

SGLang searches for a stop string in the tail of one call's output. It cannot find a stop that
begins in one chunk and ends in the next. So the driver checks the first tokens of every later chunk
again, with the window that an undivided call would have used (`Req._stop_match_tail_len`: the
longest stop in tokens, plus one). The engines count those tokens (plugin/stop_conditions.py); for
an engine without the plugin, and for the events of a stream, this process does.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from seer_sgl.types import ChunkReply, Request, WeightSpan

from .tokenizer import Tokenizer

Decode = Callable[[Any], str]
Amend = Callable[[Request, ChunkReply], ChunkReply]  # returns the reply to record
MAX_RECHECKS = 1000
# Of a stop string: one character may become eighteen (NFKC), and each of them a token per byte.
MOST_TOKENS_PER_CHARACTER = 64


class StopRecheck:
    """The stop strings of a group.

    `stop_len` returns the number of tokens of a string. `stop_token_ids`: tokens that end a
    response too.
    """

    def __init__(
        self,
        stops: Sequence[str],
        stop_len: Callable[[str], int],
        decode: Decode,
        stop_token_ids: Collection[int] = (),
    ) -> None:
        self._stops = list(stops)
        self._longest = max(map(stop_len, stops), default=0)  # tokens
        self._most = MOST_TOKENS_PER_CHARACTER * max(map(len, stops), default=0)
        self._stop_tokens = frozenset(stop_token_ids)
        self._decode = decode

    def __call__(self, before: Sequence[int], reply: ChunkReply) -> ChunkReply:
        """Returns `reply`, cut after the token that completes a stop string begun in `before`.

        `before`: the response so far, without the reply. A stop that the engine has found only
        because its window begins at the boundary does not end the response: there a part of a
        character is decoded alone, to U+FFFD. Returns the reply itself if neither is the case.
        """
        if not self._stops or not before:
            return reply
        width = self._counted(reply) + 1
        tail = list(before[-width:])
        # Beyond the window's width, the engine itself has checked the same tokens.
        for count in range(1, min(len(reply.ids), width - 1) + 1):
            window = (tail + list(reply.ids[:count]))[-width:]
            text = self._decode(window)
            for stop in self._stops:
                if stop in text:
                    return _cut(reply, count, stop)
        if isinstance(reply.matched, str) and len(reply.ids) < width:
            last = reply.ids[-1]  # SGLang looks for strings before it looks at the token
            if last in self._stop_tokens:
                return msgspec.structs.replace(reply, matched=last)
            return msgspec.structs.replace(reply, finish="length", matched=None)
        return reply

    def _counted(self, reply: ChunkReply) -> int:
        """Returns the tokens of the longest string, as the engine of the reply counts them."""
        counted = reply.stop_tokens
        return self._longest if counted is None else min(counted, self._most)


class StopStrings:
    """The stop strings of all groups. `tokenizer` None: no group has stop strings."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        # By stop strings and tokens; cleared at MAX_RECHECKS: a caller may keep sending new ones.
        self._rechecks: dict[tuple[tuple[str, ...], tuple[int, ...]], StopRecheck] = {}

    def amend(self, request: Request, reply: ChunkReply) -> ChunkReply:
        """Returns the reply to a request's next chunk, cut after a boundary-spanning stop."""
        stops = tuple(request.sampling.stops())
        if not stops:
            return reply
        sampling = request.sampling
        # With `ignore_eos`, SGLang ignores all of them.
        token_ids = () if sampling.ignore_eos else tuple(sampling.stop_token_ids)
        recheck = self._recheck(stops, token_ids)
        if not request.sampled:
            return reply
        resumed, before = request.resumed_tokens, request.response_ids
        return recheck(before[resumed:] if resumed else before, reply)

    def _recheck(self, stops: tuple[str, ...], token_ids: tuple[int, ...]) -> StopRecheck:
        key = stops, token_ids
        if key not in self._rechecks:
            if self._tokenizer is None:
                raise ValueError("stop strings without a tokenizer")
            if len(self._rechecks) >= MAX_RECHECKS:
                self._rechecks.clear()
            self._rechecks[key] = StopRecheck(
                stops, self._tokenizer.stop_len, self._tokenizer.decode, token_ids
            )
        return self._rechecks[key]


def _cut(reply: ChunkReply, count: int, stop: str) -> ChunkReply:
    spans: list[WeightSpan] = []
    left = count
    for span in reply.weight_spans:
        taken = min(span.tokens, left)
        if taken:
            spans.append(WeightSpan(span.version, taken))
        left -= taken
    experts, dropped = reply.routed_experts, len(reply.ids) - count
    return msgspec.structs.replace(
        reply,
        ids=reply.ids[:count],
        logprobs=reply.logprobs[:count],
        routed_experts=None if experts is None else experts.first(experts.rows - dropped),
        weight_spans=spans,
        finish="stop",
        matched=stop,
    )
