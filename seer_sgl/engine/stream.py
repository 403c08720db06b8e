"""SGLang's server-sent events of `/generate`: the tokens of a chunk as they arrive.

An event has all tokens so far, or with --incremental-streaming-output the new ones only. Comparing
their number with `completion_tokens` shows which. SGLang has checked the tokens of an event for a
stop.
"""

from collections.abc import AsyncIterator

import aiohttp
import msgspec

from seer_sgl.types import Chunk, ChunkReply, WeightSpan

from . import wire
from .wire import ErrorBody, Finish, Meta, Token, Unreadable

PREFIX, DONE, END = b"data:", b"[DONE]", b"\n\n"


class _EventMeta(Meta, kw_only=True):
    finish_reason: Finish | None = None  # type: ignore[assignment]  # until the last event


class _Event(msgspec.Struct):
    meta_info: _EventMeta | None = None
    error: ErrorBody | None = None


class Refused(Exception):
    """An error event: SGLang's HTTP error inside a stream. `status`: the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class StreamedReply:
    """The reply to one chunk, event by event. `reply`: the whole reply, after the last event."""

    def __init__(self, chunk: Chunk, vocab_size: int | None) -> None:
        self._chunk = chunk
        self._vocab_size = vocab_size
        self._tokens: list[Token] = []
        self.reply: ChunkReply | None = None

    def add(self, event: bytes) -> ChunkReply | None:
        """Returns the new tokens of an event; None if it has none.

        Raises Unreadable for an impossible event, and Refused if SGLang refuses the request.
        """
        decoded = wire.decode(event, _Event)
        if decoded.error is not None:
            raise Refused(400, decoded.error.message)
        meta = decoded.meta_info
        if meta is None:
            raise Unreadable("an event without meta_info")
        if self.reply is not None:
            raise Unreadable("an event after the last one")
        if meta.finish_reason is not None:
            self._end(meta, meta.finish_reason)
            return None
        wire.check_rid(meta.id, self._chunk)
        new = self._new(meta)
        self._tokens += new
        if len(self._tokens) != meta.completion_tokens:
            raise Unreadable(f"{len(self._tokens)} tokens of {meta.completion_tokens}")
        if not new:
            return None
        wire.check_count(len(self._tokens), self._chunk)
        ids, logprobs = wire.arrays(new, self._chunk, self._vocab_size)
        version = [WeightSpan(meta.weight_version, len(new))]
        return ChunkReply(ids=ids, logprobs=logprobs, weight_spans=version, finish="abort")

    def _new(self, meta: Meta) -> list[Token]:
        """Returns the tokens of an event that no event before it had."""
        tokens, known = meta.output_token_logprobs, len(self._tokens)
        if len(tokens) < meta.completion_tokens or not known:
            return tokens
        if [token.id for token in tokens[:known]] != [token.id for token in self._tokens]:
            raise Unreadable("the event changes tokens that were sent before")
        return tokens[known:]

    def _end(self, meta: Meta, finish: Finish) -> None:
        if finish.type == "abort" and finish.status_code is not None:
            raise Refused(finish.status_code, finish.message or "aborted")
        meta.output_token_logprobs = self._tokens + self._new(meta)
        self.reply = wire.checked_reply(meta, self._chunk, self._vocab_size, len(self._tokens))


async def events(content: aiohttp.StreamReader, limit: int) -> AsyncIterator[bytes]:
    """Yields the data of each event. Raises ClientPayloadError for one above `limit` bytes."""
    buffer = bytearray()
    async for piece in content.iter_any():
        start, searched = 0, max(0, len(buffer) - 1)
        buffer += piece
        while (end := buffer.find(END, searched)) >= 0:
            data = bytes(buffer[start:end]).removeprefix(PREFIX).strip()
            start = searched = end + len(END)
            if data != DONE:
                yield data
        del buffer[:start]
        if len(buffer) > limit:
            raise aiohttp.ClientPayloadError(f"an event of more than {limit} bytes")
