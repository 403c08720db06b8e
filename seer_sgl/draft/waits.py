"""Statistics of waiting times: the count, the sum and the longest."""

from typing import Any


class Waits:
    """Counts waits and adds them up."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0

    def observe(self, seconds: float) -> None:
        """Adds a wait."""
        self.count += 1
        self.sum_s += seconds
        self.max_s = max(self.max_s, seconds)

    def facts(self) -> dict[str, Any]:
        """Returns the counters, as JSON; `max_s` is the longest wait since the start."""
        return {
            "count": self.count,
            "sum_s": round(self.sum_s, 6),
            "max_s": round(self.max_s, 6),
        }
