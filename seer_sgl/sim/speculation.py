"""Grouped speculative decoding in the simulator: acceptance by the number of siblings.

Acceptance lengths by the number of reference responses are the paper's (section 3). The draft
length of a step maximises tokens per second (the paper's T_SD, "marginal benefit"), unless the
number of drafts is given.
"""

from typing import NamedTuple

import numpy as np

from .config import SpeculationConfig
from .steps import StepTime

MAX_DRAFTS = 8  # the paper's bound for one request


class Pace(NamedTuple):
    """The yield of a decode step: tokens per sequence. Its seconds: without attention, and of
    attention per KV token."""

    tokens: float
    fixed_s: float
    kv_token_s: float

    def seconds(self, context: float) -> float:
        """Returns the time of a step over `context` KV tokens."""
        return self.fixed_s + context * self.kv_token_s


class Speculation:
    """Chooses draft lengths. Without speculation a step yields one token."""

    def __init__(self, config: SpeculationConfig, step: StepTime) -> None:
        self._config = config
        self.enabled = config.enabled
        self._step = step
        most = most_drafts(config)
        self._drafts = range(1 if config.drafts is None else most, most + 1)
        self._alphas = [acceptance_rate(length, most) for length in config.accept_length]

    def acceptance(self, references: int) -> float:
        """Returns the probability that a draft token is accepted with this many references."""
        return float(np.interp(references, self._config.references, self._alphas))

    def pace(self, batch: int, alpha: float, context: float) -> Pace:
        """Returns the pace at the best draft length for `batch` sequences with `context` KV tokens
        and mean acceptance `alpha`."""
        plain = Pace(1.0, self._step.fixed(batch), self._step.attention())
        if not self.enabled:
            return plain
        paces = [self._verifying(batch, alpha, drafts) for drafts in self._drafts]
        return max(plain, *paces, key=lambda pace: pace.tokens / pace.seconds(context))

    def _verifying(self, batch: int, alpha: float, drafts: int) -> Pace:
        cpu_s = self._config.step_cpu_ms * 1e-3 + batch * drafts * self._config.draft_cpu_us * 1e-6
        return Pace(
            tokens=expected_tokens(alpha, drafts),
            fixed_s=self._step.fixed(batch, drafts) + cpu_s,
            kv_token_s=self._step.attention(drafts) + drafts * self._config.draft_kv_ns * 1e-9,
        )


def expected_tokens(alpha: float, drafts: int) -> float:
    """Returns the tokens per step including the bonus token: (1 - alpha^(g+1)) / (1 - alpha)."""
    return float(sum(alpha**k for k in range(drafts + 1)))


def most_drafts(config: SpeculationConfig) -> int:
    """Returns the greatest number of drafts per sequence and step."""
    return MAX_DRAFTS if config.drafts is None else config.drafts


def acceptance_rate(accept_length: float, drafts: int) -> float:
    """Returns the alpha at which so many drafts yield `accept_length` tokens per step."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if expected_tokens(middle, drafts) < accept_length:
            low = middle
        else:
            high = middle
    return low
