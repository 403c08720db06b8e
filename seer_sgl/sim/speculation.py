"""Grouped speculative decoding in the simulator: acceptance by what the siblings have written.

Acceptance lengths by the number of reference responses are the paper's (section 3); the draft
length of a step is the one that yields most tokens a second (its T_SD, "marginal benefit").
"""

from typing import NamedTuple

import numpy as np

from .config import SpeculationConfig
from .steps import StepTime

MAX_DRAFTS = 8  # the paper's bound for one request


class Pace(NamedTuple):
    """What a decode step of a batch brings: tokens a sequence, and its seconds without KV."""

    tokens: float
    fixed_s: float


class Speculation:
    """Chooses draft lengths. Without speculation a step is a token."""

    def __init__(self, config: SpeculationConfig, step: StepTime) -> None:
        self._config = config
        self._step = step
        self._alphas = [acceptance_rate(length) for length in config.accept_length]

    @property
    def enabled(self) -> bool:
        """Whether anything is drafted."""
        return self._config.enabled

    def acceptance(self, references: int) -> float:
        """Probability that a draft token of a request with so many references is accepted."""
        return float(np.interp(references, self._config.references, self._alphas))

    def pace(self, batch: int, alpha: float, context: float) -> Pace:
        """The best draft length for `batch` sequences, `context` KV tokens, mean `alpha`."""
        plain = Pace(1.0, self._step.fixed(batch))
        if not self.enabled:
            return plain
        kv_s = context * self._step.per_kv_token
        draft_s = self._config.draft_ms * 1e-3
        paces = [plain] + [
            Pace(expected_tokens(alpha, drafts), self._step.fixed(batch, drafts) + draft_s)
            for drafts in range(1, MAX_DRAFTS + 1)
        ]
        return max(paces, key=lambda pace: pace.tokens / (pace.fixed_s + kv_s))


def expected_tokens(alpha: float, drafts: int) -> float:
    """Tokens a step, the bonus token included: (1 - alpha^(g+1)) / (1 - alpha)."""
    return float(sum(alpha**k for k in range(drafts + 1)))


def acceptance_rate(accept_length: float) -> float:
    """The alpha at which MAX_DRAFTS drafts bring `accept_length` tokens a step."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if expected_tokens(middle, MAX_DRAFTS) < accept_length:
            low = middle
        else:
            high = middle
    return low
