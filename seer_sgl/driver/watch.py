"""Tokens of watched requests, reported as they come."""

import msgspec

from seer_sgl.types import Chunk, ChunkReply

from .run import Run
from .stop_strings import Amend


class Watch:
    """The tokens of one chunk of a watched request, as they come: its observers receive each once,
    and nothing that a later reply could take back.

    What no other chunk could continue is reported at its end only: if it is lost, it begins again.
    """

    def __init__(self, chunk: Chunk, run: Run, amend: Amend) -> None:
        self._chunk = chunk
        self._run = run
        self._amend = amend
        self._reported = 0
        self.kept: ChunkReply | None = None  # what was reported, if the engine fails now

    def received(self, new: ChunkReply) -> None:
        """More tokens have come."""
        if self._chunk.whole or (self.kept is not None and self.kept.finish == "stop"):
            return
        so_far = new if self.kept is None else joined(self.kept, new)
        self.kept = self._amend(self._chunk.request, so_far)
        self._report(self.kept)

    def ended(self, reply: ChunkReply) -> ChunkReply:
        """Returns the whole reply as it counts."""
        chunk = self._chunk
        amended = self._amend(chunk.request, reply)
        if not chunk.whole or chunk.ended_by(amended) or chunk.request.aborting:
            self._report(amended)
        return amended

    def _report(self, reply: ChunkReply) -> None:
        ids, logprobs = reply.ids[self._reported :], reply.logprobs[self._reported :]
        if ids:
            self._reported += len(ids)
            for observer in self._run.observers:
                observer.streamed(self._chunk.request, ids, logprobs)


def joined(first: ChunkReply, second: ChunkReply) -> ChunkReply:
    """A reply with the tokens of two; otherwise it is the second."""
    return msgspec.structs.replace(
        second,
        ids=first.ids + second.ids,
        logprobs=first.logprobs + second.logprobs,
        weight_spans=first.weight_spans + second.weight_spans,
    )
