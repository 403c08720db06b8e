"""Plans the next step: the drafts of the batch and their width. Of SGLang it reads only requests.

One rank of an engine drafts and sends its plan to the others (worker.py).
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seer_sgl.draft.drafter import Drafter, Drafts
from seer_sgl.draft.policy import DraftPolicy
from seer_sgl.draft.replica import Replica
from seer_sgl.draft.tree import Accepted, followed
from seer_sgl.plugin.sglang_types import SglReq

from .counts import SpeculationCounts
from .rows import BatchRows


class StepPlan(NamedTuple):
    """A step with `width` nodes per request. Width 1 is plain decoding and needs no drafts."""

    width: int
    drafts: Drafts | None


PLAIN = StepPlan(1, None)

# The tokens of the last step, int32 [n, stride], and how many of them each request has, [n].
LastStep = tuple[NDArray[np.int32], NDArray[np.int64]]

# Overlapped steps without drafts, from the first on, until they begin as regularly as they end.
SETTLED = 3


class _Verification(NamedTuple):
    drafts: Drafts
    width: int
    slots: NDArray[np.int64]  # of the Drafter, one per row
    outcome: Callable[[], Accepted]


class _Unverified(NamedTuple):
    """Drafts that a plain step left: what the requests write shows which were right."""

    drafts: Drafts
    rids: list[str]
    lengths: NDArray[np.int64]  # tokens of each request then


class _Step(NamedTuple):
    began: float
    batch: int
    width: int
    unneeded_s: float  # spent on drafts that a plain step does not need
    rests: int  # steps without a wait for the device, up to this one; 0: it has waited


class Planner:
    """Drafts for the running requests and learns from the accepted drafts.

    paths: the maximum of continuations per node; 1 drafts chains. policy: with the step times of
    this engine.
    """

    def __init__(self, drafter: Drafter, replica: Replica, paths: int, policy: DraftPolicy) -> None:
        self.counts = SpeculationCounts()
        self._drafter = drafter
        self._replica = replica
        self._rows = BatchRows(drafter, replica)
        self._paths = paths
        self._most = policy.widths[-1] - 1
        self._policy = policy
        self._acceptance = policy.acceptance
        self._step: _Step | None = None  # under way
        self._verification: _Verification | None = None  # whose outcome has not been seen
        self._unverified: _Unverified | None = None

    def plan(
        self,
        reqs: Sequence[SglReq],
        totals: NDArray[np.int64],
        last_step: Callable[[], LastStep],
        plain: bool,
    ) -> StepPlan:
        """Returns the plan of the next step of the decode batch `reqs`.

        totals: int64 [n], tokens per request, the newest included. last_step: waits until the
        device has run it; a step that does not draft does not wait. plain: the step must not
        speculate.
        """
        last = None if self._policy.resting() else last_step()
        now = time.perf_counter()
        rests = 0 if last is not None else 1 if self._step is None else self._step.rests + 1
        self._time(now, len(reqs), rests)
        self._replica.drain(time.monotonic())
        plan = PLAIN
        if last is not None:
            self._learn()  # without a wait: the last verification is over too
            plan = self._draft(reqs, totals, *last, plain)
        spent = time.perf_counter() - now
        self._step = _Step(now, len(reqs), plan.width, spent if plan.width == 1 else 0.0, rests)
        self.counts.stepped(plan.width, spent)
        return plan

    def verifying(self, plan: StepPlan, outcome: Callable[[], Accepted]) -> None:
        """Records that the drafts of the last plan are being verified.

        outcome: waits for the accepted paths and returns them. The next plan learns from them, so
        nothing waits here.
        """
        if plan.drafts is not None:
            slots = self._rows.slots
            self._verification = _Verification(plan.drafts, plan.width, slots, outcome)

    def interrupted(self) -> None:
        """Drops the timing of the current step, because a batch other than decoding has run."""
        self._step = None
        self._replica.drain(time.monotonic())

    def facts(self) -> dict[str, Any]:
        """Returns the counters of drafted and accepted tokens, as JSON."""
        self._learn()
        tally = self._acceptance.tally
        return {
            **self.counts.facts(),
            "drafted_by_position": tally.tried[1:].tolist(),
            "accepted_by_position": tally.accepted[1:].tolist(),
            "index": {"tokens": self._drafter.tokens, "bytes": self._drafter.nbytes},
            "replica": self._replica.facts(),
        }

    def finished(self, rid: str) -> None:
        """Removes a request that is complete."""
        self._rows.leave(rid)

    def _time(self, now: float, batch: int, rests: int) -> None:
        """Learns from the time of the step that ends now. rests: of the step that begins.

        Overlapped, a step that waits begins when the device ends the one before, and others begin
        a step earlier. So only times between steps of one kind count.
        """
        step = self._step
        if step is None or step.batch != batch:
            return
        alike = step.rests >= SETTLED if rests else step.rests == 0 and step.width > 1
        if alike or not self._policy.overlaps:
            self._policy.times.observe(batch, step.width, now - step.began - step.unneeded_s)

    def _learn(self) -> None:
        """Learns from the last verification, if there is one that it has not learnt from."""
        seen, self._verification = self._verification, None
        if seen is None:
            return
        accepted = seen.outcome()
        self._acceptance.observe(seen.drafts, accepted, seen.width)
        self.counts.verified(
            seen.drafts, accepted, lambda row, one: self._replica.source(int(seen.slots[row]), one)
        )

    def _draft(
        self,
        reqs: Sequence[SglReq],
        totals: NDArray[np.int64],
        runs: NDArray[np.int32],
        run_lens: NDArray[np.int64],
        plain: bool,
    ) -> StepPlan:
        rows = self._rows
        rows.follow(reqs)
        known = rows.lengths
        tokens, counts = rows.missing(reqs, totals, runs, run_lens)
        self._learn_from(tokens, counts, known)
        # The last token that a request may have is a bonus token, not a draft.
        room = np.minimum(rows.limits - totals - 1, 0 if plain else self._most)
        budgets = np.maximum(room, 0).astype(np.int32)
        drafts = self._drafter.step(rows.slots, tokens, counts, budgets, self._paths)
        rows.share(tokens, counts)
        if plain or not drafts.counts.any():
            if self._policy.overlaps:  # a step that rests waits for nothing
                self._policy.rest()
            return PLAIN
        width = self._policy.width(drafts)
        if width > 1:
            return StepPlan(width, drafts)
        self._unverified = _Unverified(drafts, list(rows.rids), rows.lengths.copy())
        return PLAIN

    def _learn_from(
        self, tokens: NDArray[np.int32], counts: NDArray[np.int32], known: NDArray[np.int64]
    ) -> None:
        """Learns which of the last drafts, if nobody verified them, the requests have written.

        So acceptance stays known while drafting does not pay. tokens, counts: of each row, since it
        had `known` tokens.
        """
        left, self._unverified = self._unverified, None
        if left is None:
            return
        ends = np.cumsum(counts, dtype=np.int64)
        rows = {
            rid: (int(end) - int(count), int(count), int(length))
            for rid, end, count, length in zip(self._rows.rids, ends, counts, known, strict=True)
        }
        # A request that was preempted since has begun again, with another length.
        found = [
            rows[rid][:2] if rid in rows and rows[rid][2] == length else (0, 0)
            for rid, length in zip(left.rids, left.lengths.tolist(), strict=True)
        ]
        starts, written = np.array(found, np.int64).reshape(-1, 2).T
        drafts, path = followed(
            left.drafts, tokens, np.ascontiguousarray(starts), np.ascontiguousarray(written)
        )
        self._acceptance.observe(drafts, path, drafts.tokens.shape[1] + 1, verified=False)
