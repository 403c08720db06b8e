"""Chooses the number of tokens to draft (paper section 3, the marginal-benefit-aware policy).

All rows of a verification have the same width and the same cost. The paper's budget per draft token
therefore becomes one number per step: the width. The policy chooses the width with the most
expected tokens per second; width 1 is plain decoding. It learns the time of a step by batch and
width (steps.py) and the acceptance of draft tokens (acceptance.py).
"""

from collections.abc import Sequence

import numpy as np

from .acceptance import Acceptance
from .drafter import Drafts
from .steps import StepTimes

# Times the rate of plain decoding: the best of several estimates is usually a little too high.
LEAST_GAIN = 1.05
MAX_PAUSE = 32  # steps without drafts, while drafting gains too little
MOST_NODES = 2048  # per verification, over all requests, unless the engine can verify more
EXPLORE_EVERY = 64  # steps; then a neighbouring width is tried, to measure its time
MOST_EXPLORE = 1024  # steps between two tries, while each shows that drafting gains too little


class DraftPolicy:
    """Chooses the width of each verification.

    widths: ascending, the first is 1. most_nodes: the maximum per verification. pause: plain steps
    before the first draft.
    """

    def __init__(
        self,
        widths: Sequence[int],
        times: StepTimes,
        acceptance: Acceptance,
        most_nodes: int = MOST_NODES,
        *,
        pause: int = 0,
    ) -> None:
        self.widths = list(widths)
        self.times = times
        self.acceptance = acceptance
        self._most_nodes = most_nodes
        self._pause = pause  # steps left without drafting
        self._patience = 1  # the next pause, steps
        self._steps = 0
        self._interval = EXPLORE_EVERY
        self._explore_at = EXPLORE_EVERY  # steps

    def resting(self) -> bool:
        """Returns whether this step decodes plainly, without drafts. Counts as a step."""
        self._steps += 1
        if not self._pause:
            return False
        self._pause -= 1
        return True

    def width(self, drafts: Drafts) -> int:
        """Returns the width of this step. drafts: the tokens to verify."""
        batch = len(drafts.counts)
        deepest = int(drafts.counts.max(initial=0)) + 1
        gained = np.cumsum(self.acceptance.expected(drafts).sum(axis=0))  # by the first k + 1 nodes
        best, best_rate = 1, LEAST_GAIN * batch / self.times.predict(batch, 1)
        for width in self.widths[1:]:
            if self._beyond(width, deepest) or batch * width > self._most_nodes:
                break
            gain = float(gained[min(width - 1, gained.size) - 1])
            rate = (batch + gain) / self.times.predict(batch, width)
            if rate > best_rate:
                best, best_rate = width, rate
        self._rest_after(best)
        return self._explored(best, deepest, self._most_nodes // batch)

    def _beyond(self, width: int, deepest: int) -> bool:
        """Returns whether the next narrower width already holds every draft."""
        return self.widths[self.widths.index(width) - 1] >= deepest

    def _rest_after(self, width: int) -> None:
        if width > 1:
            self._patience = 1
            return
        self._pause = self._patience
        self._patience = min(2 * self._patience, MAX_PAUSE)

    def _explored(self, width: int, deepest: int, widest: int) -> int:
        """Returns the best width, or now and then a neighbouring width."""
        if self._steps < self._explore_at or deepest == 1:
            return width
        self._interval = EXPLORE_EVERY if width > 1 else min(2 * self._interval, MOST_EXPLORE)
        self._explore_at = self._steps + self._interval
        self._pause = 0  # overlapped, a step with drafts is timed if the next one looks at drafts
        at = self.widths.index(width)
        wider = self.widths[at + 1] if at + 1 < len(self.widths) else widest + 1
        return wider if wider <= widest else self.widths[max(0, at - 1)]
