"""Counts the requests that pass through, by the reason."""

from collections import Counter

# A client chooses the names of fields, and must not choose the number of counters.
MOST_REASONS = 64
MOST_CHARACTERS = 64
OTHER = "other"


class PassthroughReasons:
    """The number of requests by reason: the name of a field or parameter, or `other`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, reason: str) -> None:
        """Adds one request."""
        if reason not in self.counts and (
            len(self.counts) >= MOST_REASONS
            or len(reason) > MOST_CHARACTERS
            or not reason.isidentifier()
            or not reason.isascii()
        ):
            reason = OTHER
        self.counts[reason] += 1
