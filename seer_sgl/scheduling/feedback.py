"""How much of an engine's KV may be promised, as the engine itself lets us know.

The ledger knows our own chunks only. Where others use the engine too, or it keeps KV for reasons
of its own, a chunk that fits by the ledger may still cost a retraction.
"""

BACK_OFF = 7 / 8  # of what was usable, after a retraction
# A retraction shows when its chunk returns, minutes later; with a report every half second, an
# eighth of the capacity comes back in a minute.
RECOVERY = 1 / 1024  # of the capacity, a report
FLOOR = 1 / 8  # of the capacity; below it an engine would serve us next to nothing
FOREIGN_DECAY = 3 / 4  # a report: what others used a moment ago they may use again


class KVFeedback:
    """The usable part of one engine's KV capacity, in tokens.

    Two signals: tokens in use beyond what we were promised (`/v1/loads`), subtracted as measured,
    and retractions (meta_info.num_retractions of a reply), answered by additive increase and
    multiplicative decrease.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._limit = float(capacity)
        self._foreign = 0.0
        self._backed_off = False  # since the last report: one incident, many chunks

    @property
    def usable(self) -> int:
        """Tokens that may be promised: capacity, less what others use and experience forbids."""
        return int(min(self._limit, self._capacity - self._foreign))

    def retracted(self) -> None:
        """A chunk came back that had been retracted."""
        if not self._backed_off:
            self._limit = max(self._limit * BACK_OFF, self._capacity * FLOOR)
        self._backed_off = True

    def reported(self, used: int, promised: int) -> None:
        """The engine has `used` tokens in use; `promised`: the most we may have had lately."""
        foreign = max(0, min(used, self._capacity) - promised)
        decayed = self._foreign * FOREIGN_DECAY
        self._foreign = max(foreign, decayed if decayed >= 1.0 else 0.0)
        if not self._backed_off:
            self._limit = min(float(self._capacity), self._limit + self._capacity * RECOVERY)
        self._backed_off = False
