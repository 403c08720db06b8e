"""The time of a decode step by batch size and draft width: measured at the start, kept fresh."""

from collections.abc import Mapping

import numpy as np

COMMON = 0.1  # share of a new measurement in what all widths have in common
OWN = 0.02  # and in what is one width's own, once that is known from its first measurements
OUTLIER = 3.0  # a step that took so many times longer or shorter than expected is cut to that


class StepTimes:
    """T(batch, width) = forward(batch, width) + own[width] + common, seconds.

    `forward` is what was measured at the start, interpolated between batch sizes. All else that a
    step takes is learnt from the steps: what a width has of its own (sampling at every node, the
    walk), which hardly changes, and what all have in common (scheduling, attention to contexts that
    grow), which one width's steps show for all.
    """

    def __init__(self, forward: Mapping[tuple[int, int], float]) -> None:
        """`forward`: seconds by (batch, width); every width at the same batch sizes."""
        batches = sorted({batch for batch, _ in forward})
        widths = sorted({width for _, width in forward})
        self._batches = np.array(batches, float)
        self._forward = {
            width: np.array([forward[batch, width] for batch in batches]) for width in widths
        }
        self._interpolated: dict[tuple[int, int], float] = {}
        self._own = dict.fromkeys(widths, 0.0)
        self._seen = dict.fromkeys(widths, 0)
        self._common = 0.0

    def predict(self, batch: int, width: int) -> float:
        """Seconds of a step."""
        forward = self._measured(batch, width)
        return max(forward / OUTLIER, forward + self._own[width] + self._common)

    def observe(self, batch: int, width: int, seconds: float) -> None:
        """A step took so long."""
        expected = self.predict(batch, width)
        if any(self._seen.values()):  # the first one shows what the start's measurement left out
            seconds = min(max(seconds, expected / OUTLIER), expected * OUTLIER)
        else:
            self._common = seconds - expected
        self._seen[width] += 1
        own = max(OWN, 1 / self._seen[width])
        surprise = seconds - self.predict(batch, width)
        self._own[width] += own * surprise
        self._common += (1 - own) * COMMON * surprise

    def _measured(self, batch: int, width: int) -> float:
        """Interpolated between the batch sizes that were measured; in proportion beyond them."""
        known = self._interpolated.get((batch, width))
        if known is None:
            times = self._forward[width]
            beyond = max(1.0, batch / self._batches[-1])
            known = float(np.interp(batch, self._batches, times) * beyond)
            self._interpolated[batch, width] = known
        return known
