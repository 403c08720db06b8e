"""Invariants: every request ends exactly once, with its tokens, and no KV is left."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer_sgl.config import UNDIVIDED, with_values
from seer_sgl.errors import SimulationError
from seer_sgl.sim import simulate
from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.source import load_settings
from seer_sgl.sim.variants import VARIANTS
from seer_sgl.traces.trace import Responses
from seer_sgl.types import token_array
from tests.sim.storm import ExactlyOnce

LONGEST = 600


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Responses], SimConfig]:
    lengths = st.lists(st.integers(1, LONGEST), min_size=1, max_size=6)
    groups = draw(st.lists(lengths, min_size=1, max_size=8))
    prompt = draw(st.integers(1, 200))
    responses = [
        Responses(f"g{i}", token_array([i]) * prompt, group) for i, group in enumerate(groups)
    ]
    config = load_settings(
        known={
            "workload": {"prompt_tokens": prompt, "lengths": {"mean": 100, "max": LONGEST}},
            "engine": {
                "count": draw(st.integers(1, 4)),
                "kv_tokens": draw(st.integers(900, 4000)),
                "max_running_requests": draw(st.integers(1, 20)),
                "reserve_tokens": draw(st.sampled_from([0, 4096])),
            },
            "pool": {"enabled": draw(st.booleans())},
            "scheduling": {"chunk_tokens": draw(st.integers(1, 700))},
            "speculation": {"enabled": draw(st.booleans())},
        }
    )
    return responses, config


@pytest.mark.process
@given(case=cases(), variant=st.sampled_from(sorted(VARIANTS)))
@settings(max_examples=120, deadline=None)
def test_every_request_ends_once_with_its_tokens_and_the_ledger_at_zero(
    case: tuple[list[Responses], SimConfig], variant: str
) -> None:
    """`simulate` raises if the driver or the scheduler has something left at the end."""
    responses, config = case[0], with_values(case[1], VARIANTS[variant])
    once = ExactlyOnce(responses, LONGEST)
    record = simulate.simulate(responses, config, observers=[once]).record
    once.check()
    if variant not in UNDIVIDED:
        assert record.totals.retractions == 0


def test_drafts_beyond_the_last_token_have_room_in_the_ledger() -> None:
    config = load_settings(
        known={
            "workload": {"prompt_tokens": 86, "lengths": {"mean": 100, "max": LONGEST}},
            "engine": {"count": 1, "kv_tokens": 906, "max_running_requests": 20},
            "pool": {"enabled": False},
            "scheduling": {"chunk_tokens": 2},
        }
    )
    config = with_values(config, VARIANTS["seer+sd"])
    groups = [[1, 120, 453, 4, 149], [2, 366, 137]]
    responses = [Responses(f"g{i}", token_array([i]) * 86, group) for i, group in enumerate(groups)]
    record = simulate.simulate(responses, config).record
    assert record.totals.retractions == 0


def test_a_simulation_that_cannot_continue_says_so() -> None:
    # load_settings would reject it
    config = with_values(SimConfig(), {"engine.kv_tokens": 300})
    with pytest.raises(SimulationError, match="stands still"):
        simulate.simulate([Responses("g", token_array([1]), [500])], config)
