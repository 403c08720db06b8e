"""One chunk on a simulated engine."""

from seer_sgl.types import Chunk


class Job:
    """A chunk, the tokens that it will return, and its progress.

    `rid`: of the chunk; `uid`: of its request; `tokens`: the tokens that it returns; `pooled`: the
    KV of its input is in host memory or the pool; `fetched`: input tokens that were fetched with
    it; `device`, `host`, `storage`: input tokens found in each tier; `alpha`: probability that a
    draft token of it is accepted.

    While it runs, its sizes follow from the engine's progress P, the tokens that every running
    sequence has received: length = P + `length_base`, output = P + `output_base`.
    """

    __slots__ = (
        "aborted",
        "alpha",
        "chunk",
        "device",
        "fetched",
        "first_step",
        "group",
        "host",
        "input_len",
        "length_base",
        "max_new",
        "output_base",
        "pooled",
        "produced",
        "prompt_len",
        "retractions",
        "rid",
        "steps",
        "storage",
        "tokens",
        "uid",
    )

    def __init__(
        self,
        chunk: Chunk,
        tokens: int,
        *,
        pooled: bool = False,
        fetched: int = 0,
        alpha: float = 0.0,
    ) -> None:
        request = chunk.request
        self.chunk = chunk
        self.rid = chunk.rid
        self.uid = request.uid
        self.group = request.group.uid
        self.prompt_len = request.prompt_len
        self.input_len = request.total_len
        self.max_new = chunk.max_new_tokens
        self.tokens = tokens
        self.pooled = pooled
        self.fetched = fetched
        self.device = self.host = self.storage = 0
        self.alpha = alpha
        self.length_base = 0.0
        self.output_base = 0.0
        self.produced = 0  # output tokens when it was last retracted
        self.first_step = 0
        self.steps = 0  # decode steps it took part in
        self.retractions = 0
        self.aborted = False  # it ended early, with the tokens that it had written

    @property
    def context(self) -> int:
        """Tokens that need KV before it can decode."""
        return self.input_len + self.produced
