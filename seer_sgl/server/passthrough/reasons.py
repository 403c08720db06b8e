"""Why requests pass through, and how many."""

from collections import Counter

# A client chooses the names of fields, and must not choose the number of counters.
MOST_REASONS = 64
MOST_CHARACTERS = 64
OTHER = "other"


class NotDivisible(Exception):
    """The request cannot be divided. `reason`: the field or parameter, for the metrics."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PassthroughReasons:
    """The number of requests by reason: the name of a field or parameter, or `other`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, reason: str) -> None:
        if reason not in self.counts and (
            len(self.counts) >= MOST_REASONS
            or len(reason) > MOST_CHARACTERS
            or not reason.isidentifier()
            or not reason.isascii()
        ):
            reason = OTHER
        self.counts[reason] += 1
