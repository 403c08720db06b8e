"""A device with a clock of its own that runs what a real planner plans, over a real index."""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seer_sgl.draft.acceptance import Acceptance
from seer_sgl.draft.drafter import Drafter
from seer_sgl.draft.policy import DraftPolicy
from seer_sgl.draft.replica import Replica
from seer_sgl.draft.steps import StepTimes
from seer_sgl.draft.tree import followed
from seer_sgl.plugin.speculation import planner
from seer_sgl.plugin.speculation.planner import LastStep, Planner

from .requests import request

BATCHES = (1, 2, 4, 8, 16, 32)
HOST_S = 2e-4  # between a plan and its launch

Times = Callable[[int, int], float]  # seconds of a step, by requests and width
Text = Callable[[int, int], int]  # the token that a request writes at a place


class Device:
    """Requests that write a given text. measured: what the engine took for the times of its steps.

    overlaps: a step is planned while the one before runs, if the planner does not wait for it.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        times: Times,
        measured: Times,
        text: Text,
        widths: Sequence[int] = (1, 5),
        overlaps: bool = True,
        paths: int = 1,
    ) -> None:
        self._clock = SimpleNamespace(now=0.0, monotonic=time.monotonic)
        self._clock.perf_counter = lambda: self._clock.now
        monkeypatch.setattr(planner, "time", self._clock)
        self.times = StepTimes({(b, w): measured(b, w) for b in BATCHES for w in widths})
        acceptance, pause = Acceptance(widths[-1] - 1), 8 if overlaps else 0
        policy = DraftPolicy(widths, self.times, acceptance, pause=pause, overlaps=overlaps)
        drafter = Drafter()
        replica = Replica(drafter, None, max_tokens=10**8, scope="engine")
        self.planner = Planner(drafter, replica, paths, policy)
        self.acceptance = policy.acceptance
        self.reqs: list[Any] = []
        self.waits = 0  # of the planner, for a step
        self._times, self._text, self._overlaps = times, text, overlaps
        self._stride = widths[-1]
        self._made = 0
        self._ends = (0.0, 0.0)  # of the last two steps
        self._lens: Any = None  # tokens per request of the last step

    def add(self, count: int) -> None:
        """Begins requests, after a prefill."""
        for _ in range(count):
            self._made += 1
            new = request(f"r{self._made}", [self._text(self._made, 0)], group=f"r{self._made}")
            new.sampling_params.max_new_tokens = 10**7
            self.reqs.append(new)
        self.changed()

    def drop(self, count: int) -> None:
        """Ends the last requests."""
        for one in self.reqs[len(self.reqs) - count :]:
            self.planner.finished(one.rid)
        del self.reqs[len(self.reqs) - count :]
        self._lens = None

    def changed(self) -> None:
        """Notes that another batch has run, or that the order of the requests has changed."""
        self.planner.interrupted()
        self._lens = None

    def run(self, steps: int, *, plain: bool = False) -> list[int]:
        """Returns the widths of so many steps. plain: they must not speculate."""
        return [self._step(plain) for _ in range(steps)]

    def _step(self, plain: bool) -> int:
        clock, count = self._clock, len(self.reqs)
        clock.now = max(clock.now, self._ends[0 if self._overlaps else 1])
        totals = np.array([3 + len(one.output_ids) for one in self.reqs])
        plan = self.planner.plan(self.reqs, totals, self._last_step, plain)
        clock.now += HOST_S
        end = max(clock.now, self._ends[1]) + self._times(count, plan.width)
        self._ends = self._ends[1], end
        lens = np.ones(count, np.int64)
        if plan.drafts is not None:
            cut = np.minimum(plan.drafts.counts, plan.width - 1).astype(np.int32)
            starts = np.arange(count, dtype=np.int64) * self._stride
            ahead = [self.written(one, i) for one in self.reqs for i in range(self._stride)]
            _, accepted = followed(
                plan.drafts._replace(counts=cut),
                np.array(ahead, np.int32),
                starts,
                np.full(count, self._stride, np.int64),
            )
            self.planner.verifying(plan, lambda: accepted)
            lens = accepted.counts.astype(np.int64)
        for one, new in zip(self.reqs, lens.tolist(), strict=True):
            one.output_ids += [self.written(one, i) for i in range(new)]
        self._lens = lens
        return plan.width

    def written(self, one: Any, ahead: int) -> int:
        """Returns the token that a request writes `ahead` tokens from now on."""
        return self._text(number_of(one.rid), len(one.output_ids) + ahead)

    def _last_step(self) -> LastStep:
        self.waits += 1
        self._clock.now = max(self._clock.now, self._ends[1])
        lens = np.ones(len(self.reqs), np.int64) if self._lens is None else self._lens
        runs = np.zeros((len(self.reqs), self._stride), np.int32)
        for row, one, new in zip(runs, self.reqs, lens.tolist(), strict=True):
            row[:new] = one.output_ids[-new:]
        return runs, lens


def number_of(rid: str) -> int:
    """Returns the number of a request of a Device, which its text depends on."""
    return int(rid[1:])
