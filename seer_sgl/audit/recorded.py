"""A sample as its file records it, and the facts of each of its tokens."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from seer_sgl.sampling import NEUTRAL, Sampling
from seer_sgl.types import WeightSpan

F64 = npt.NDArray[np.float64]
UNKNOWN = "unknown"
# The first tokens of each part of a response.
POSITIONS = (0, 1, 16, 64, 256, 1024, 4096, 16384, 65536)
# A token that the server holds for impossible has no log probability in JSON; and a floor keeps one
# such token from hiding all others in a mean.
LEAST = -100.0
# Parameters that change the distribution from which a token is drawn, and which a prefill ignores.
SHIFTING = (
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"),
    *("min_new_tokens", "json_schema", "regex", "ebnf", "structural_tag"),
)


class RecordedSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a file.

    `log_probs` [response tokens]: NaN where the file has none. `mixed`: weight versions of which
    the file does not give the tokens, where there are several. `chunk_lengths`: tokens of each
    chunk, in order; None: unknown. `engines`: one per chunk. `drafted`: whether speculative
    decoding made it; None: unknown. `whole`: whether the model generated every token of the
    response (False: tools added some).
    """

    name: str
    prompt_ids: list[int]
    response_ids: list[int]
    log_probs: F64
    spans: list[WeightSpan] = []
    mixed: list[str] = []
    engines: list[str] = []
    chunk_lengths: list[int] | None = None
    chunks: int | None = None
    drafted: bool | None = None
    seed: int | None = None
    sampling: Sampling = NEUTRAL
    whole: bool = True

    @property
    def tokens(self) -> int:
        """The number of prompt and response tokens."""
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def largest_id(self) -> int:
        """The largest token id."""
        return max(*self.prompt_ids, *self.response_ids)

    @property
    def greedy(self) -> bool:
        """Whether each token is the likeliest one."""
        return self.sampling.temperature == 0 or self.sampling.top_k == 1

    @property
    def temperature(self) -> float:
        """The temperature of its log probabilities: SGLang reports greedy ones at 1."""
        return 1.0 if self.greedy else self.sampling.temperature

    @property
    def shifted_by(self) -> list[str]:
        """The parameters for which a prefill cannot give its log probabilities."""
        return [name for name in SHIFTING if getattr(self.sampling, name) != getattr(NEUTRAL, name)]

    @property
    def unrepeatable(self) -> str | None:
        """Why no server can generate it again; None if one can."""
        if not self.whole:
            return "some tokens are not the model's"
        return "without a seed" if self.seed is None and not self.greedy else None


def labels(sample: RecordedSample) -> dict[str, list[str]]:
    """Returns the parts that each response token belongs to, by kind of part."""
    count = len(sample.response_ids)
    drafted = {None: UNKNOWN, True: "drafted", False: "not drafted"}[sample.drafted]
    return {
        "position": _positions(count),
        "chunk": _chunks(sample),
        "engine": _engines(sample),
        "weight version": _spread([(span.version, span.tokens) for span in sample.spans], count),
        "drafts": [drafted] * count,
    }


def _positions(count: int) -> list[str]:
    ends = [*POSITIONS[1:], max(count, POSITIONS[-1] + 1)]
    return _spread(
        [
            (str(first) if end == first + 1 else f"{first} to {end - 1}", end - first)
            for first, end in zip(POSITIONS[:-1], ends[:-1], strict=True)
        ]
        + [(f"from {POSITIONS[-1]}", ends[-1] - POSITIONS[-1])],
        count,
    )


def _chunks(sample: RecordedSample) -> list[str]:
    count = len(sample.response_ids)
    if sample.chunk_lengths is not None:
        first, *later = sample.chunk_lengths or [count]
        runs = [("first chunk", first)]
        for length in later:
            runs += [("later chunks: first token", min(1, length))]
            runs += [("later chunks: other tokens", max(0, length - 1))]
        return _spread(runs, count)
    if sample.chunks is None:
        return [UNKNOWN] * count
    return ["samples of one chunk" if sample.chunks == 1 else "samples of several chunks"] * count


def _engines(sample: RecordedSample) -> list[str]:
    count = len(sample.response_ids)
    if sample.chunk_lengths is not None and len(sample.chunk_lengths) == len(sample.engines):
        return _spread(list(zip(sample.engines, sample.chunk_lengths, strict=True)), count)
    names = list(dict.fromkeys(sample.engines))
    return [names[0] if len(names) == 1 else "several" if names else UNKNOWN] * count


def _spread(runs: Sequence[tuple[str, int]], count: int) -> list[str]:
    """Returns the name of each token's run; `count` names, whatever the runs add up to."""
    ends = [0, *accumulate(length for _, length in runs)]
    named = [
        name
        for (name, _), (begin, end) in zip(runs, pairwise(ends), strict=True)
        for _ in range(begin, min(end, count))
    ]
    return [*named, *[UNKNOWN] * (count - len(named))]
