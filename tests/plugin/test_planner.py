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
from seer_sgl.plugin.speculation.planner import Plan, Planner
from tests.plugin.requests import request

STRIDE = 5
REPEATS = [7, 8, 9, 7, 8, 9, 7, 8]  # what follows is easy to guess


class Engine:
    """A planner over a real index, with two requests that repeat themselves."""

    def __init__(self) -> None:
        times = {(batch, width): 1e-3 for batch in (1, 8) for width in (1, 3, STRIDE)}
        policy = DraftPolicy((1, 3, STRIDE), StepTimes(times), Acceptance(STRIDE - 1))
        drafter = Drafter()
        replica = Replica(drafter, None, max_tokens=1000, scope="engine")
        self.planner = Planner(drafter, replica, 1, policy)
        self.reqs = [request(rid, REPEATS, group=rid) for rid in ("a", "b")]
        self.asked = 0  # outcomes

    def plan(self) -> Plan:
        totals = np.array([3 + len(req.output_ids) for req in self.reqs])
        runs = np.zeros((len(self.reqs), STRIDE), np.int32)
        runs[:, 0] = [req.output_ids[-1] for req in self.reqs]
        return self.planner.plan(self.reqs, totals, runs, np.ones(len(runs), np.int64), False)

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


def test_a_report_has_the_last_verification(engine: Engine) -> None:
    engine.planner.verifying(engine.plan(), engine.outcome)
    assert engine.planner.facts()["verified_rows"] == 2
    assert engine.planner.facts()["verified_rows"] == 2
    assert engine.asked == 1


def test_a_request_that_has_ended_since_counts_without_its_sources(engine: Engine) -> None:
    engine.planner.verifying(engine.plan(), engine.outcome)
    engine.planner.finished("a")
    facts = engine.planner.facts()
    assert facts["accepted_by_position"] == [2, 2, 0, 0]
    assert facts["sources"] == {"own": 2}
