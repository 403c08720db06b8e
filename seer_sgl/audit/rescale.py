"""Log probabilities at another temperature, from those of the likeliest tokens at temperature 1.

A rollout reports log-softmax(logits / temperature). A prefill of SGLang reports log-softmax(logits)
whatever the temperature is, and the likeliest tokens with it.
"""

from typing import NamedTuple

import numpy as np

from .recorded import F64

CANDIDATES = 128
MOST_TOKENS = 1 << 20  # no vocabulary is larger
ROUNDING = 1e-6  # of a sum of probabilities in float32
# A token whose log probability may be wrong by more is left out of the comparison.
MOST_ERROR = 1e-4


class Rescaled(NamedTuple):
    """Log probabilities, and the largest possible error of each: what the other tokens may add."""

    log_probs: F64
    error: F64


def rescaled(log_probs: F64, top: F64, temperature: float, complete: bool) -> Rescaled:
    """Returns the log probabilities [tokens] at a temperature.

    `log_probs` [tokens], `top` [tokens, candidates]: at temperature 1, `top` of the likeliest
    tokens. Where the token itself is none of them, it counts once more. `complete`: whether `top`
    has the whole vocabulary.
    """
    if temperature == 1.0:
        return Rescaled(log_probs, np.zeros_like(log_probs))
    least = top.min(axis=1)
    inside = log_probs >= least
    own = np.where(inside, 0.0, np.exp(log_probs / temperature))
    total = np.exp(top / temperature).sum(axis=1) + own
    if complete:
        rest = np.zeros_like(total)
    else:
        mass = np.exp(top).sum(axis=1) + np.where(inside, 0.0, np.exp(log_probs))
        left = np.maximum(0.0, 1.0 - mass) + ROUNDING
        power = 1.0 / temperature
        # Each of the others is at most as likely as the last candidate (power above 1); below 1
        # their sum is greatest if they are all equally likely.
        rest = (
            left * np.exp(least * (power - 1.0))
            if power > 1.0
            else left**power * MOST_TOKENS ** (1.0 - power)
        )
    return Rescaled(log_probs / temperature - np.log(total), np.log1p(rest / total))
