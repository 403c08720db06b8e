"""Compares an engine's log probabilities of some tokens with the trainer's own. Pure.

Equal weights give nearly equal log probabilities: kernels and the order of sums differ. Other
weights give other ones.
"""

import itertools
import random
from collections.abc import Sequence

TOKENS = 256  # of the probe: a short forward pass, and many numbers to average
# The largest mean difference of log probabilities that is still numerical noise, in nats: a part
# that does not depend on the tokens, and a share of their mean size, because rounding errors grow
# with the logits. Measured with bf16 on CPU: 0.003 for samples (size 0.5), 0.08 for random tokens
# (size 14); exchanged matrices of one shape change them by 0.16 and 3.3.
TOLERANCE, TOLERANCE_SHARE = 0.05, 0.02
# Whether an engine has the old or the new weights is decided if a step moves the log probabilities
# by so many times the noise. Noise may point along the step, because both are largest where a token
# is uncertain: at 1.5, an engine with the new weights was seen at 0.36 of the way from old to new.
# Sums of squares would let one such token decide: with them, engines with the new weights were seen
# at 0.13 although the step was above four times the noise.
CLEAR = 4.0
OLD_PLACE = 0.4


def first_ids(vocab_size: int) -> list[int]:
    """Returns tokens for the first probe, which comes before any sample; always the same."""
    return random.Random(0).choices(range(vocab_size), k=TOKENS)


def problem(
    engine: Sequence[float], new: Sequence[float], old: Sequence[float] | None = None
) -> str | None:
    """Returns why an engine does not have the new weights; None if it may have them.

    All are log probabilities of the same tokens: the engine's, and the trainer's with its weights
    now and before the last step. One step may change the weights by less than that shows;
    then the place of the engine's numbers between the old and the new ones decides.
    """
    if len(engine) != len(new):
        return f"it returned {len(engine)} log probabilities, not {len(new)}"
    mean = difference(engine, new)
    if not mean <= tolerance(new):  # NaN is no pass
        return f"its log probabilities differ from the trainer's by {mean:.3g} (mean)"
    place = position(engine, new, old) if old is not None and len(old) == len(new) else None
    if place is not None and place < OLD_PLACE:
        return f"its log probabilities are those of the previous weights (place {place:.2f})"
    return None


def tolerance(own: Sequence[float]) -> float:
    """Returns the largest mean difference that is still noise, in nats."""
    size = -sum(own) / max(1, len(own))
    return TOLERANCE + TOLERANCE_SHARE * size


def difference(engine: Sequence[float], own: Sequence[float]) -> float:
    """Returns the mean absolute difference, in nats."""
    return sum(abs(a - b) for a, b in zip(engine, own, strict=True)) / max(1, len(own))


def position(engine: Sequence[float], new: Sequence[float], old: Sequence[float]) -> float | None:
    """Returns where the engine is on the line from old (0) to new (1), by least absolute deviation.

    None if old and new differ too little to decide, by CLEAR. The noise is what the line does not
    explain of the engine's numbers.
    """
    pairs = [(b - a, c - a) for a, b, c in zip(old, new, engine, strict=True)]
    length = sum(abs(step) for step, _ in pairs)
    ratios = sorted((done / step, abs(step)) for step, done in pairs if step)
    below = itertools.accumulate(weight for _, weight in ratios)
    halves = (ratio for (ratio, _), sum_ in zip(ratios, below, strict=True) if sum_ >= length / 2)
    place = next(halves, 0.0)  # the weighted median
    noise = sum(abs(done - place * step) for step, done in pairs)
    return place if length > CLEAR * noise else None
