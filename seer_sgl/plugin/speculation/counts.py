"""What speculation has done since the server started, for `/server_info` and the report."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from seer_sgl.draft.drafter import Drafts
from seer_sgl.draft.tree import Accepted

SOURCES_EVERY = 16  # verifications; whose tokens were accepted is looked at in one of so many


class Counts:
    """Counters of one engine; only ever growing."""

    def __init__(self) -> None:
        self.steps: Counter[int] = Counter()  # by width; 1 is plain decoding
        self.tokens = 0  # emitted by verifications, the bonus tokens included
        self.rows = 0  # verified requests, over all steps
        self.draft_s = 0.0  # of the scheduler's thread in drafting: index, messages, decisions
        self.sources: Counter[str] = Counter()  # of accepted drafts, a sample of them
        self._verifications = 0

    def stepped(self, width: int, seconds: float) -> None:
        """A step was planned in so many seconds."""
        self.steps[width] += 1
        self.draft_s += seconds

    def verified(
        self, drafts: Drafts, accepted: Accepted, source: Callable[[int, int], str]
    ) -> None:
        """A step's drafts met the target. source: of a row and an entry of `Drafts.sources`."""
        self.rows += len(accepted.counts)
        self.tokens += int(accepted.counts.sum())
        self._verifications += 1
        if self._verifications % SOURCES_EVERY:
            return
        rows, places = np.nonzero(accepted.nodes[:, 1:] >= 0)
        written = drafts.sources[rows, accepted.nodes[rows, places + 1] - 1]
        self.sources.update(
            source(row, one) for row, one in zip(rows.tolist(), written.tolist(), strict=True)
        )

    def facts(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {
            "steps": {str(width): count for width, count in sorted(self.steps.items())},
            "verified_rows": self.rows,
            "verified_tokens": self.tokens,
            "draft_s": round(self.draft_s, 6),
            "sources": dict(self.sources),
        }
