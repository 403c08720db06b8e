"""What a verified step of the simulator costs, and which drafts it is worth."""

import pytest

from seer_sgl.config import with_values
from seer_sgl.report.report import report
from seer_sgl.sim.config import EngineConfig, SpeculationConfig
from seer_sgl.sim.speculation import MAX_DRAFTS, Pace, Speculation, expected_tokens
from seer_sgl.sim.steps import StepTime
from seer_sgl.sim.variants import VARIANTS
from tests.sim.helpers import rolled, small

SURE = 0.99  # probability that a draft is accepted
CONTEXT = 50_000


def pace(engine: EngineConfig, alpha: float = SURE, **costs: float) -> Pace:
    """Returns the pace of ten sequences with 50,000 tokens of KV."""
    speculation = with_values(SpeculationConfig(enabled=True), costs)
    return Speculation(speculation, StepTime(engine)).pace(10, alpha, CONTEXT)


def test_a_verified_step_takes_the_plain_one_and_what_its_drafts_add() -> None:
    engine = EngineConfig(draft_overhead_us=20.0, attention_mflop=0.0)
    best = pace(engine, step_cpu_ms=2.0, draft_cpu_us=5.0)
    assert best.tokens == pytest.approx(expected_tokens(SURE, MAX_DRAFTS)), "as many as there are"
    plain = Speculation(SpeculationConfig(), StepTime(engine)).pace(10, 0.0, CONTEXT)
    assert plain.seconds(CONTEXT) == pytest.approx(
        3e-3 + 10 * 10e-6 + 16 / 2010 + CONTEXT * 131_072 / 2010e9
    )
    more_s = best.seconds(CONTEXT) - plain.seconds(CONTEXT)
    assert more_s == pytest.approx(2e-3 + 10 * MAX_DRAFTS * (20e-6 + 5e-6))
    attending = pace(engine, step_cpu_ms=2.0, draft_cpu_us=5.0, draft_kv_ns=3.0)
    more_s = attending.seconds(CONTEXT) - best.seconds(CONTEXT)
    assert more_s == pytest.approx(CONTEXT * MAX_DRAFTS * 3e-9)


def test_attention_to_many_drafts_is_bound_by_compute() -> None:
    read_s = 131_072 / 2010e9
    query_s = 0.4 * read_s  # from the third query on, computing takes longer than reading
    step = StepTime(EngineConfig(attention_mflop=query_s * 400e6))
    assert [step.attention(drafts) for drafts in (0, 1, 2, 8)] == pytest.approx(
        [read_s, read_s, 1.2 * read_s, 3.6 * read_s]
    )


def test_costs_make_drafts_shorter_and_then_pointless() -> None:
    free = pace(EngineConfig(), 0.6, step_cpu_ms=0.0, draft_cpu_us=0.0)
    dear = pace(EngineConfig(), 0.6, step_cpu_ms=0.0, draft_cpu_us=200.0)
    computed = pace(EngineConfig(attention_mflop=40.0), 0.6, step_cpu_ms=0.0, draft_cpu_us=0.0)
    assert free.tokens > dear.tokens > 1
    assert free.tokens > computed.tokens > 1
    assert pace(EngineConfig(), 0.6, step_cpu_ms=100.0).tokens == 1, "plain decoding is faster"


def test_a_given_number_of_drafts_is_not_shortened() -> None:
    given = SpeculationConfig(enabled=True, drafts=12, accept_length=(3.2, 3.2, 3.2, 3.2))
    costs = {"step_cpu_ms": 0.0, "draft_cpu_us": 20.0}
    engine = EngineConfig(draft_overhead_us=0.0)
    speculation = Speculation(with_values(given, costs), StepTime(engine))
    alpha = speculation.acceptance(0)
    found = speculation.pace(10, alpha, CONTEXT)
    assert found.tokens == pytest.approx(3.2)
    assert pace(engine, alpha, **costs).tokens < found.tokens, "the best number is smaller"
    plain = StepTime(engine).fixed(10)
    assert found.fixed_s - plain == pytest.approx(10 * 12 * 20e-6)
    dear = Speculation(with_values(given, {"step_cpu_ms": 100.0}), StepTime(engine))
    assert dear.pace(10, alpha, CONTEXT).tokens == 1, "a plain step is faster"


def test_the_costly_end_of_the_range_lies_between_drafting_and_not() -> None:
    plain, drafted, costly = (
        report(rolled(with_values(small(), VARIANTS[name])))
        for name in ("seer", "seer+sd", "seer+sd_costly")
    )
    assert drafted["wall_s"] < costly["wall_s"] < plain["wall_s"]
    assert drafted["accept_length"] >= costly["accept_length"] > 1
