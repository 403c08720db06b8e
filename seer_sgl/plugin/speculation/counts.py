"""Counters of speculation since the server started, for `/server_info` and the report."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from seer_sgl.draft.drafter import Drafts
from seer_sgl.draft.tree import Accepted

SOURCES_EVERY = 16  # verifications; the sources of accepted tokens are counted in one of them


class SpeculationCounts:
    """Counters of one engine. They only grow."""

    def __init__(self) -> None:
        self.steps: Counter[int] = Counter()  # by width; 1 is plain decoding
        self.tokens = 0  # emitted by verifications, the bonus tokens included
        self.rows = 0  # verified requests, over all steps
        self.draft_s = 0.0  # seconds the scheduler's thread spent on drafting
        self.sources: Counter[str] = Counter()  # of a sample of the accepted drafts
        self._verifications = 0

    def stepped(self, width: int, seconds: float) -> None:
        """Counts a planned step. seconds: spent on its plan."""
        self.steps[width] += 1
        self.draft_s += seconds

    def verified(
        self, drafts: Drafts, accepted: Accepted, source: Callable[[int, int], str | None]
    ) -> None:
        """Counts a verified step.

        source: names the source of a row's entry in `Drafts.sources`, None if it is not known any
        more.
        """
        self.rows += len(accepted.counts)
        self.tokens += int(accepted.counts.sum())
        self._verifications += 1
        if self._verifications % SOURCES_EVERY:
            return
        rows, places = np.nonzero(accepted.nodes[:, 1:] >= 0)
        sequences = drafts.sources[rows, accepted.nodes[rows, places + 1] - 1]
        for row, sequence in zip(rows.tolist(), sequences.tolist(), strict=True):
            name = source(row, sequence)
            if name is not None:
                self.sources[name] += 1

    def facts(self) -> dict[str, Any]:
        """Returns all counters, as JSON."""
        return {
            "steps": {str(width): count for width, count in sorted(self.steps.items())},
            "verified_rows": self.rows,
            "verified_tokens": self.tokens,
            "draft_s": round(self.draft_s, 6),
            "sources": dict(self.sources),
        }
