"""What the responses of a group so far say about the lengths of those that still run. Pure.

Lengths are log-normal: within a group, their logarithms vary by a spread around the group's mean.
Any mean is as likely as another one before the first response. The spread is that of all groups,
the one that explains their responses best. A finished response counts with its length. One that
runs counts with the tokens it has so far: it is at least that long.

All lengths are shares of the maximum response length, so the same tables serve every limit.
"""

import functools
import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# Standard deviations of the logarithm within a group.
SPREADS = (0.15, 0.2, 0.27, 0.36, 0.45, 0.6, 0.8, 1.1)
USUAL_SPREAD = 0.45  # of reasoning models' responses (configs/sim/: 0.37 to 0.49)
DOUBT = 0.5  # standard deviation of the spread's logarithm before the first response
REMEMBERED = 256  # past groups that count for the spread
LEAST_ENDED = 2  # responses of a group that counts for the spread
CHANGES = 16  # of a group's responses, until the spread is chosen again
MEANS = np.linspace(-8.0, 1.0, 61)  # of the logarithm of a length's share of the limit
SHORTEST = -10.0  # the least such logarithm of a length
CELLS = np.linspace(SHORTEST, 0.0, 256)  # lengths are rounded to them
UNKNOWN = np.zeros((len(SPREADS), len(MEANS)))  # log likelihoods of a group without a length
UNKNOWN.flags.writeable = False  # all groups that wait share it
LEAST = 1e-300  # a survival whose logarithm is taken


class _Tables:
    """Of the survival at each cell, cells x spreads x means, and the length of each cell."""

    def __init__(self) -> None:
        spreads = np.array(SPREADS)[None, :, None]
        scaled = (CELLS[:, None, None] - MEANS[None, None, :]) / spreads
        flat = [0.5 * math.erfc(x) for x in (scaled / math.sqrt(2.0)).ravel()]
        self.survival = np.array(flat).reshape(scaled.shape)
        self.log_survival = np.log(np.maximum(self.survival, LEAST))
        self.log_density = -0.5 * scaled**2 - np.log(spreads)
        self.shares = np.exp(CELLS)


@functools.cache
def _tables() -> _Tables:
    return _Tables()


class Spread:
    """How much lengths vary within the groups of a caller. `chosen`: an index of SPREADS."""

    def __init__(self) -> None:
        self._logs = np.log(np.array(SPREADS))
        self._prior = -0.5 * ((self._logs - math.log(USUAL_SPREAD)) / DOUBT) ** 2
        self._live = np.zeros(len(SPREADS))  # log evidence of the groups that run
        self._past = np.zeros(len(SPREADS))
        self._changes = 0  # since the last choice
        self.chosen = SPREADS.index(USUAL_SPREAD)

    def changed(self, before: Floats, after: Floats) -> None:
        """Replaces the log evidence of a running group, per spread."""
        self._live += after - before
        self._changes += 1
        if self._changes == CHANGES:
            self._changes = 0
            self._choose()

    def ended(self, last: Floats) -> None:
        """Records that a group has ended, with its last log evidence."""
        self._live -= last
        self._past = self._past * (1.0 - 1.0 / REMEMBERED) + last

    def _choose(self) -> None:
        evidence = self._prior + self._live + self._past
        share = np.exp(evidence - evidence.max())
        mean = float(share @ self._logs / share.sum())
        self.chosen = int(np.abs(self._logs - mean).argmin())


class LengthPosterior:
    """The lengths of one group's responses. `limit`: their maximum, in tokens."""

    def __init__(self, limit: int, spread: Spread) -> None:
        self._limit = limit
        self._spread = spread
        self._tables = _tables()
        self._weights: Floats = UNKNOWN  # log likelihoods; replaced, never changed in place
        self._reported: Floats = UNKNOWN[:, 0]  # log evidence that `spread` has of this group
        self._ended = 0
        self._reached: dict[int, int] = {}  # the cells of running responses, by index

    def reached(self, index: int, tokens: int) -> None:
        """Records that a response has so many tokens and continues."""
        cell = self._cell(tokens)
        if cell != self._reached.get(index):
            self._forget(index)
            self._weights = self._weights + self._tables.log_survival[cell]
            self._reached[index] = cell
            self._report()

    def ended(self, index: int | None, tokens: int) -> None:
        """Records the length of a response. `index` None: it is of an earlier rollout."""
        if index is not None:
            self._forget(index)
        self._ended += 1
        cut = tokens >= self._limit
        table = self._tables.log_survival if cut else self._tables.log_density
        self._weights = self._weights + table[self._cell(tokens)]

    def close(self) -> None:
        """Records that the group has ended."""
        self._report()
        self._spread.ended(self._reported)

    def possible(self, tokens: int, chance: float) -> int:
        """Returns the length that a response exceeds with probability `chance`, at most the limit.

        `tokens`: what it has so far.
        """
        cell, chosen = self._cell(tokens), self._spread.chosen
        weights, survival = self._weights[chosen], self._tables.survival[cell:, chosen]
        tail = survival @ (np.exp(weights - weights.max()) / np.maximum(survival[0], LEAST))
        found = cell + int(np.searchsorted(-tail, -chance * tail[0]))
        if found >= len(CELLS) - 1:
            return self._limit
        length = math.ceil(self._limit * float(self._tables.shares[found]))
        return max(tokens, min(length, self._limit))

    def _forget(self, index: int) -> None:
        before = self._reached.pop(index, None)
        if before is not None:
            self._weights = self._weights - self._tables.log_survival[before]

    def _report(self) -> None:
        """Updates the shared evidence for each spread, once two responses of the group ended.

        That happens when a response comes back from an engine to continue, never when one ends: of
        responses that are on engines, ends are known at once, so they look shorter and more alike
        than they are. With fewer ends, a narrow spread explains best that many responses continue,
        because the grid of means has an end.
        """
        if self._ended < LEAST_ENDED:
            return
        most = self._weights.max(axis=1)
        evidence = most + np.log(np.exp(self._weights - most[:, None]).sum(axis=1))
        evidence -= evidence.max()
        self._spread.changed(self._reported, evidence)
        self._reported = evidence

    def _cell(self, tokens: int) -> int:
        """Returns the index of the cell of a length."""
        if tokens <= 0:
            return 0
        place = 1.0 - math.log(tokens / self._limit) / SHORTEST
        return min(max(round(place * (len(CELLS) - 1)), 0), len(CELLS) - 1)
