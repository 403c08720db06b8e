"""How much of an engine's KV may be promised, from the engine's own reports.

The ledger counts the driver's own chunks only. If other clients use the engine, or the engine keeps
KV for itself, a chunk that fits by the ledger may still cause a retraction.
"""

BACK_OFF = 7 / 8  # factor on the usable KV after a retraction
# A retraction becomes visible when its chunk returns, minutes later. With a report every half
# second, an eighth of the capacity returns within a minute.
RECOVERY = 1 / 1024  # of the capacity, per report
FLOOR = 1 / 8  # of the capacity; below it an engine would run almost no chunks
FOREIGN_DECAY = 3 / 4  # per report: KV that others used recently they may use again


class KVFeedback:
    """The usable part of one engine's KV capacity, in tokens.

    It has two signals. Tokens in use beyond the promised ones (`/v1/loads`) are subtracted as
    measured. Retractions (`meta_info.num_retractions` of a reply) drive an additive increase and
    multiplicative decrease.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._limit = float(capacity)
        self._foreign = 0.0
        self._backed_off = False  # since the last report: one incident, many chunks

    @property
    def usable(self) -> int:
        """Tokens that may be promised: the capacity, less the use of others and the back-off."""
        return int(min(self._limit, self._capacity - self._foreign))

    def retracted(self) -> None:
        """Backs off, once per report: a chunk returned that had been retracted."""
        if not self._backed_off:
            self._limit = max(self._limit * BACK_OFF, self._capacity * FLOOR)
        self._backed_off = True

    def reported(self, used: int, promised: int) -> None:
        """Applies a load report: `used` tokens in use, of which `promised` at most are ours."""
        foreign = max(0, min(used, self._capacity) - promised)
        decayed = self._foreign * FOREIGN_DECAY
        self._foreign = max(foreign, decayed if decayed >= 1.0 else 0.0)
        if not self._backed_off:
            self._limit = min(float(self._capacity), self._limit + self._capacity * RECOVERY)
        self._backed_off = False
