"""The event-driven engine equals the step-by-step one (stepwise.py)."""

import pytest

from seer_sgl.report.report import report
from seer_sgl.sim.simulate import simulate
from seer_sgl.sim.workload import sample
from tests.sim.helpers import CROWDED, rolled, small
from tests.sim.stepwise import StepwiseEngine

POLICIES = ("group_round_robin", "fcfs", "seer", "oracle")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "engine",
    [
        "kv_tokens: 60000",
        "kv_tokens: 12000",
        "kv_tokens: 12000, reserve_tokens: 0",
        "kv_tokens: 40000, max_running_requests: 9",
    ],
)
def test_it_agrees_with_the_step_by_step_engine(
    policy: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dict(part.split(": ") for part in engine.split(", "))
    config = small(
        f"scheduling.policy={policy}",
        *(f"engine.{key}={value}" for key, value in settings.items()),
    )
    responses = sample(config.workload)
    run = simulate(responses, config)
    monkeypatch.setattr("seer_sgl.sim.engine.SimulatedEngine", StepwiseEngine)
    reference = simulate(responses, config)
    fast, plain = report(run.record), report(reference.record)
    assert fast["wall_s"] == pytest.approx(plain["wall_s"], rel=0.01)
    assert fast["tail_s"] == pytest.approx(plain["tail_s"], rel=0.05)
    assert fast["retractions"] == pytest.approx(plain["retractions"], rel=0.05, abs=2)
    assert fast["response_tokens"] == plain["response_tokens"]
    assert run.forward_steps == pytest.approx(reference.forward_steps, rel=0.01)


def test_an_engine_without_reserve_preempts_and_one_with_the_ledger_never_does() -> None:
    tight = "engine.kv_tokens=12000", "engine.reserve_tokens=0"
    baseline = report(rolled(small(*tight, "scheduling.policy=group_round_robin")))
    assert baseline["retractions"] > 10
    for policy in ("fcfs", "seer", "oracle"):
        assert report(rolled(small(*tight, f"scheduling.policy={policy}")))["retractions"] == 0


def test_without_a_pool_a_request_that_moves_is_prefilled_again() -> None:
    pooled = report(rolled(small(*CROWDED)))
    config = small(*CROWDED, "pool.enabled=false")
    run = simulate(sample(config.workload), config)
    alone = report(run.record)
    assert run.pool_peak == 0
    assert pooled["migrations"] > 5
    assert alone["migrations"] > 5
    assert pooled["moved_bytes"] > 0
    assert pooled["fetches"] >= pooled["planned_fetches"] == pooled["migrations"]
    assert alone["fetches"] == alone["planned_fetches"] == 0
    assert pooled["recomputed_tokens"] == alone["moved_bytes"] == 0
    assert alone["recomputed_tokens"] > 1000


def test_drafts_that_are_accepted_save_steps() -> None:
    plain = report(rolled(small()))
    drafted = report(rolled(small("speculation.enabled=true")))
    assert plain["accept_length"] is None
    assert 1.3 < drafted["accept_length"] < 2.6
    assert drafted["wall_s"] < plain["wall_s"] / 1.2
    never = report(
        rolled(small("speculation.enabled=true", "speculation.accept_length=[1, 1, 1, 1]"))
    )
    assert never["wall_s"] == pytest.approx(plain["wall_s"], rel=1e-6)
