"""The time of a decode step by batch size and draft width: measured, then updated by steps."""

from collections.abc import Mapping

import numpy as np

COMMON = 0.1  # weight of a new measurement in the part that all widths share
OWN = 0.02  # and in the part of one width, for each step since that width was last seen
MOST_OWN = 0.5  # after its first measurement
OUTLIER = 3.0  # a step's time is clipped to this factor above or below the expected time
LEAST = 0.1  # of the measured time: the least that is expected, whatever was learnt


class StepTimes:
    """T(batch, width) = forward(batch, width) * own[width] + common, seconds.

    `forward`, with the draws at all nodes, was measured at start-up and is interpolated between
    batch sizes. The other two are learnt from the steps. `own` corrects what was measured beside
    other work: a factor, so that what is learnt with few requests holds for many. `common`
    (scheduling, attention to growing contexts) is the same for all widths, so any step updates it.
    """

    def __init__(self, forward: Mapping[tuple[int, int], float]) -> None:
        """`forward`: seconds by (batch, width); all widths have the same batch sizes."""
        batches = sorted({batch for batch, _ in forward})
        widths = sorted({width for _, width in forward})
        self._batches = np.array(batches, float)
        self._forward = {
            width: np.array([forward[batch, width] for batch in batches]) for width in widths
        }
        self._interpolated: dict[tuple[int, int], float] = {}
        self._own = dict.fromkeys(widths, 1.0)
        self._seen = dict.fromkeys(widths, 0)
        self._seen_at = dict.fromkeys(widths, 0)  # steps
        self._steps = 0
        self._common = 0.0

    def predict(self, batch: int, width: int) -> float:
        """Returns the expected seconds of a step."""
        return max(LEAST * self._measured(batch, width), self._learnt(batch, width))

    def observe(self, batch: int, width: int, seconds: float) -> None:
        """Learns from the time of a step."""
        expected = self.predict(batch, width)
        if any(self._seen.values()):  # the first step shows the time that `forward` lacks
            seconds = min(max(seconds, expected / OUTLIER), expected * OUTLIER)
        else:
            self._common = seconds - expected
        self._seen[width] += 1
        self._steps += 1
        age, self._seen_at[width] = self._steps - self._seen_at[width], self._steps
        own = max(min(MOST_OWN, 1 - (1 - OWN) ** age), 1 / self._seen[width])
        surprise = seconds - self._learnt(batch, width)
        self._own[width] += own * surprise / self._measured(batch, width)
        self._common += (1 - own) * COMMON * surprise

    def times_seen(self, width: int) -> int:
        """Returns the number of steps of a width that it has learnt from."""
        return self._seen[width]

    def _learnt(self, batch: int, width: int) -> float:
        return self._measured(batch, width) * self._own[width] + self._common

    def _measured(self, batch: int, width: int) -> float:
        """Returns `forward`, interpolated between the measured batch sizes, proportional beyond."""
        known = self._interpolated.get((batch, width))
        if known is None:
            times = self._forward[width]
            beyond = max(1.0, batch / self._batches[-1])
            known = float(np.interp(batch, self._batches, times) * beyond)
            self._interpolated[batch, width] = known
        return known
