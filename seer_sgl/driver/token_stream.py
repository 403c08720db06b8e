"""Reports the tokens of streaming requests as they arrive."""

import msgspec

from seer_sgl.types import Chunk, ChunkReply

from .run import Run
from .stop_strings import Amend


class TokenStream:
    """The stream of one chunk of a streaming request.

    Its observers receive each token once, and only final tokens. The tokens of an undivided chunk
    are reported at its end only: if the chunk is lost, it begins again.
    """

    def __init__(self, chunk: Chunk, run: Run, amend: Amend) -> None:
        self._chunk = chunk
        self._run = run
        self._amend = amend
        self._reported = 0
        self.kept: ChunkReply | None = None  # the tokens so far, kept if the engine fails

    def received(self, new: ChunkReply) -> None:
        if self._chunk.undivided or (self.kept is not None and self.kept.finish == "stop"):
            return
        so_far = new if self.kept is None else joined(self.kept, new)
        self.kept = self._amend(self._chunk.request, so_far)
        self.report(self.kept)

    def report(self, reply: ChunkReply) -> None:
        """Reports the tokens of a reply that were not reported yet.

        The loop calls it when it takes the reply: no other code runs between the last tokens of a
        request and its end, so no observer shows a stop string that the end removes.
        """
        ids, logprobs = reply.ids[self._reported :], reply.logprobs[self._reported :]
        if ids:
            self._reported += len(ids)
            for observer in self._run.observers:
                observer.streamed(self._chunk.request, ids, logprobs)


def joined(first: ChunkReply, second: ChunkReply) -> ChunkReply:
    """Returns a copy of the second reply with the tokens of both, in the arrays of the first: new
    arrays at each of many events would take ever longer."""
    first.ids.extend(second.ids)
    first.logprobs.extend(second.logprobs)
    first.weight_spans.extend(second.weight_spans)
    return msgspec.structs.replace(
        second, ids=first.ids, logprobs=first.logprobs, weight_spans=first.weight_spans
    )
