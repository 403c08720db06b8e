"""Where a response that was generated again leaves the recorded one, and how close the two were."""

import math
from collections.abc import Sequence

import msgspec

from seer_sgl.seeded_noise import gumbel

from .client import Generated
from .recorded import F64, RecordedSample

ROUNDING = 1e-3  # by so much a score may fall behind, as the two log probabilities are of two steps


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first token of a response that differs.

    `recorded`, `generated`: token ids; `recorded_log_prob`: as the file has it; None if it has
    none. `server_log_prob`: what the server gives the recorded token; `generated_log_prob`: what it
    gives its own. `gap`: by how much the server's score of its own token exceeds that of the
    recorded one, where a score is a log probability plus the seed's noise for the token; None if
    the noise is not known (a filter such as top-p was on). `near_tie`: whether the gap is within
    rounding. `agree_after`: the share of equal tokens after it, at the same positions.
    """

    sample: str
    position: int
    recorded: int
    generated: int
    recorded_log_prob: float | None
    server_log_prob: float | None
    generated_log_prob: float
    gap: float | None
    near_tie: bool | None
    tokens_after: int
    agree_after: float | None


def equal_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the number of equal tokens before the first difference of two equally long lists."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((position for position, (a, b) in pairs if a != b), len(one))


def first_difference(
    sample: RecordedSample, again: Generated, prefilled: F64, tie: float
) -> FirstDifference | None:
    """Returns the first difference of two responses of one length; None if there is none.

    `prefilled` [response tokens]: the server's log probabilities of the recorded tokens, NaN where
    they are unknown. `tie`: gaps up to it are within rounding.
    """
    position = equal_tokens(sample.response_ids, again.ids)
    if position == len(again.ids):
        return None
    after = position + 1
    count = len(again.ids) - after
    pairs = zip(sample.response_ids[after:], again.ids[after:], strict=True)
    gap = _gap(sample, again, prefilled, position)
    return FirstDifference(
        sample=sample.name,
        position=position,
        recorded=sample.response_ids[position],
        generated=again.ids[position],
        recorded_log_prob=_known(sample.log_probs[position]),
        server_log_prob=_known(prefilled[position]),
        generated_log_prob=float(again.log_probs[position]),
        gap=gap,
        near_tie=None if gap is None else gap <= tie,
        tokens_after=count,
        agree_after=sum(a == b for a, b in pairs) / count if count else None,
    )


def _gap(sample: RecordedSample, again: Generated, prefilled: F64, position: int) -> float | None:
    server = _known(prefilled[position])
    if server is None:
        return None
    gap = float(again.log_probs[position]) - server
    if not sample.greedy:
        if sample.seed is None:
            return None
        at = len(sample.prompt_ids) + position - 1  # of the step's last input token
        gap += gumbel(sample.seed, at, again.ids[position])
        gap -= gumbel(sample.seed, at, sample.response_ids[position])
    # The server chose the greatest score. If this is not it, the noise was another one.
    return max(0.0, gap) if gap >= -ROUNDING else None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
