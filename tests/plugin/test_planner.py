"""The planner learns what a verification accepted when it plans the next step, not earlier."""

import numpy as np
import pytest

from seer_sgl.draft.acceptance import Acceptance
from seer_sgl.draft.drafter import Drafter
from seer_sgl.draft.policy import DraftPolicy
from seer_sgl.draft.replica import Replica
from seer_sgl.draft.steps import StepTimes
from seer_sgl.draft.tree import Accepted
from seer_sgl.plugin.speculation import counts
from seer_sgl.plugin.speculation.planner import PLAIN, SETTLED, LastStep, Planner, StepPlan
from tests.plugin.requests import request

STRIDE = 5
REPEATS = [7, 8, 9, 7, 8, 9, 7, 8]  # what follows is easy to guess


class Engine:
    """A planner over a real index, with two requests that repeat themselves."""

    def __init__(self, pause: int = 0, *, overlaps: bool = False) -> None:
        times = {(batch, width): 1e-3 for batch in (1, 8) for width in (1, 3, STRIDE)}
        self.policy = policy = DraftPolicy(
            (1, 3, STRIDE),
            StepTimes(times),
            Acceptance(STRIDE - 1),
            pause=pause,
            overlaps=overlaps,
        )
        drafter = Drafter()
        replica = Replica(drafter, None, max_tokens=100_000, scope="engine")
        self.planner = Planner(drafter, replica, 1, policy)
        self.waited = 0  # for the tokens of a step
        self.reqs = [request(rid, REPEATS, group=rid) for rid in ("a", "b")]
        for req in self.reqs:
            req.sampling_params.max_new_tokens = 100_000
        self.asked = 0  # outcomes

    def plan(self) -> StepPlan:
        totals = np.array([3 + len(req.output_ids) for req in self.reqs])
        return self.planner.plan(self.reqs, totals, self.last_step, False)

    def last_step(self) -> LastStep:
        """Waits for the newest token of each request."""
        self.waited += 1
        runs = np.zeros((len(self.reqs), STRIDE), np.int32)
        runs[:, 0] = [req.output_ids[-1] for req in self.reqs]
        return runs, np.ones(len(runs), np.int64)

    def outcome(self) -> Accepted:
        """Returns that both requests accepted two drafts."""
        self.asked += 1
        nodes = np.full((2, STRIDE), -1, np.int32)
        nodes[:, :3] = [0, 1, 2]
        return Accepted(nodes, np.full(2, 3, np.int32))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(counts, "SOURCES_EVERY", 1)
    return Engine()


def test_the_next_plan_learns_from_a_verification(engine: Engine) -> None:
    plan = engine.plan()
    assert plan.width == STRIDE
    engine.planner.verifying(plan, engine.outcome)
    engine.planner.interrupted()  # by a prefill
    assert engine.asked == 0, "the device may still be verifying"
    for req in engine.reqs:
        req.output_ids += [9, 7, 8]
    engine.plan()
    engine.plan()
    assert engine.asked == 1
    facts = engine.planner.facts()
    assert facts["verified_tokens"] == 6
    assert facts["accepted_by_position"] == [2, 2, 0, 0]
    assert facts["sources"] == {"own": 4}


def test_a_request_that_has_ended_since_counts_without_its_sources(engine: Engine) -> None:
    engine.planner.verifying(engine.plan(), engine.outcome)
    engine.planner.finished("a")
    facts = engine.planner.facts()
    assert facts["accepted_by_position"] == [2, 2, 0, 0]
    assert facts["sources"] == {"own": 2}


def test_a_step_without_drafts_waits_for_nothing_and_its_tokens_are_made_up_for() -> None:
    engine = Engine(pause=3)
    for token in (9, 7, 8):
        assert engine.plan() == PLAIN
        for req in engine.reqs:
            req.output_ids.append(token)
    assert engine.waited == 0
    plan = engine.plan()
    assert engine.waited == 1
    assert plan.drafts is not None
    assert plan.drafts.tokens[0, :2].tolist() == [9, 7], "what follows 7, 8"


def test_the_outcome_of_a_verification_is_not_waited_for_in_a_step_without_drafts(
    engine: Engine,
) -> None:
    engine.planner.verifying(engine.plan(), engine.outcome)
    engine.policy._pause = 2
    assert engine.plan() == engine.plan() == PLAIN
    assert engine.asked == 0
    for req in engine.reqs:
        req.output_ids += [9, 7, 8]
    engine.plan()
    assert engine.asked == 1


@pytest.mark.parametrize("overlaps", [False, True])
def test_overlapped_steps_are_timed_between_beginnings_of_one_kind(
    monkeypatch: pytest.MonkeyPatch, overlaps: bool
) -> None:
    seen: list[tuple[int, int]] = []
    rests = SETTLED + 2
    engine = Engine(pause=rests, overlaps=overlaps)
    monkeypatch.setattr(
        engine.policy.times, "observe", lambda batch, width, _: seen.append((batch, width))
    )
    for _ in range(rests):  # the last two intervals between plain steps are settled
        engine.plan()
    plain = len(seen)
    widths = [engine.plan().width for _ in range(4)]  # the first one begins when the last rest ends
    engine.policy._pause = 1
    engine.plan()
    if not overlaps:
        assert len(seen) == rests + 4
        return
    assert plain == rests - SETTLED
    assert [width for _, width in seen[plain:]] == [width for width in widths[:3] if width > 1]
