"""Chooses the number of tokens to draft (paper section 3, the marginal-benefit-aware policy).

All rows of a verification have the same width and the same cost. The paper's budget per draft token
therefore becomes one number per step: the width. The policy chooses the width with the most
expected tokens per second; width 1 is plain decoding. It learns the time of a step by batch and
width (steps.py) and the acceptance of draft tokens (acceptance.py).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .acceptance import Acceptance
from .drafter import Drafts
from .steps import StepTimes

# Times the rate of plain decoding: the best of several estimates is usually a little too high.
LEAST_GAIN = 1.05
MAX_PAUSE = 32  # steps without drafts, while drafting gains too little
MOST_NODES = 2048  # per verification, over all requests, unless the engine can verify more
EXPLORE_EVERY = 64  # steps; then a neighbouring width is tried, to measure its time
MOST_EXPLORE = 1024  # steps between two tries, while each shows what was known
NEWS = 0.1  # a time that a try has changed by this share was not known
# Overlapped, so many plain steps in a row are timed once (planner.py: SETTLED), and so many follow
# a step that has nothing to draft, because those wait for nothing.
PLAIN_STEPS = 4


class _Try(NamedTuple):
    """A step of another width than the best, to learn its time."""

    batch: int
    width: int
    seen: int  # steps of this width that had been timed before
    expected: float  # seconds


class DraftPolicy:
    """Chooses the width of each verification.

    widths: ascending, the first is 1. most_nodes: the maximum per verification. pause: plain steps
    before the first draft. overlaps: a step is planned while the device runs the one before.
    """

    def __init__(
        self,
        widths: Sequence[int],
        times: StepTimes,
        acceptance: Acceptance,
        most_nodes: int = MOST_NODES,
        *,
        pause: int = 0,
        overlaps: bool = False,
    ) -> None:
        self.widths = list(widths)
        self.times = times
        self.acceptance = acceptance
        self._most_nodes = most_nodes
        self.overlaps = overlaps
        self._pause = pause  # steps left without drafting
        self._patience = 1  # the next pause, steps
        self._steps = 0
        self._interval = EXPLORE_EVERY
        self._explore_at = EXPLORE_EVERY  # steps
        self._tried: _Try | None = None  # the last one
        self._narrower = True  # whether the last try was narrower than the best width

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
        return self._explored(batch, best, deepest)

    def rest(self) -> None:
        """Lets some steps decode plainly, because nothing can be drafted."""
        self._pause = PLAIN_STEPS

    def _beyond(self, width: int, deepest: int) -> bool:
        """Returns whether the next narrower width already holds every draft."""
        return self.widths[self.widths.index(width) - 1] >= deepest

    def _rest_after(self, width: int) -> None:
        if width > 1:
            self._patience = 1
            return
        self._pause = self._patience
        self._patience = min(2 * self._patience, MAX_PAUSE)

    def _explored(self, batch: int, best: int, deepest: int) -> int:
        """Returns the best width, or now and then a neighbouring width."""
        last = self._tried
        alike = last is not None and batch < 2 * last.batch < 4 * batch
        if not alike:
            self._explore_at = min(self._explore_at, self._steps + EXPLORE_EVERY)
        if self._steps < self._explore_at or deepest == 1:
            return best
        known = last is not None and alike and self._was_known(last)
        self._interval = min(2 * self._interval, MOST_EXPLORE) if known else EXPLORE_EVERY
        self._explore_at = self._steps + self._interval
        width = self._neighbour(batch, best, deepest)
        times = self.times
        self._tried = _Try(batch, width, times.times_seen(width), times.predict(batch, width))
        if width > 1:  # overlapped, it is timed if the next step looks at drafts too
            self._pause = 0
        elif self.overlaps:
            self._pause = max(self._pause, PLAIN_STEPS)
        return width

    def _was_known(self, tried: _Try) -> bool:
        """Returns whether a try was timed, and its width takes as long as expected."""
        if self.times.times_seen(tried.width) == tried.seen:
            return False
        change = self.times.predict(tried.batch, tried.width) - tried.expected
        return abs(change) < NEWS * tried.expected

    def _neighbour(self, batch: int, width: int, deepest: int) -> int:
        """Returns the next wider and the next narrower width in turn, as far as they are useful."""
        at = self.widths.index(width)
        wider = self.widths[at + 1 : at + 2]
        if wider and (self._beyond(wider[0], deepest) or batch * wider[0] > self._most_nodes):
            wider = []
        narrower = self.widths[max(0, at - 1) : at]
        self._narrower = bool(narrower) and not (wider and self._narrower)
        return (narrower if self._narrower else wider or [width])[0]
