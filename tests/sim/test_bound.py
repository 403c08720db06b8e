"""No simulated rollout is faster than the lower bound, and one that cannot idle comes near it."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer_sgl.config import with_values
from seer_sgl.sim.bound import lower_bound_s
from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.variants import DRAFTS, VARIANTS, Scenario
from seer_sgl.traces.trace import Responses

UNDRAFTED = sorted(name for name, values in VARIANTS.items() if not values[DRAFTS])


def planned(groups: list[list[int]], prompt_len: int = 20) -> list[Responses]:
    return [
        Responses(f"g{i}", array("i", [i]) * prompt_len, lengths)
        for i, lengths in enumerate(groups)
    ]


def scenario(groups: list[list[int]], **values: Any) -> Scenario:
    keys = {"workload.lengths.max": 3000} | {
        name.replace("__", "."): values[name] for name in values
    }
    return Scenario("a", planned(groups), with_values(SimConfig(), keys))


LENGTHS = st.lists(st.lists(st.integers(1, 900), min_size=1, max_size=4), min_size=1, max_size=6)
FLEETS = st.fixed_dictionaries(
    {
        "engine__count": st.sampled_from([1, 3]),
        "engine__kv_tokens": st.sampled_from([4_000, 400_000]),
        "engine__max_running_requests": st.sampled_from([1, 1024]),
        "scheduling__chunk_tokens": st.sampled_from([64, 8192]),
    }
)


@settings(max_examples=25)
@given(LENGTHS, FLEETS, st.sampled_from(UNDRAFTED))
def test_no_order_is_faster(groups: list[list[int]], fleet: dict[str, Any], policy: str) -> None:
    it = scenario(groups, **fleet)
    assert lower_bound_s(it.responses, it.config) <= it.alone(policy).wall_s + 1e-3


@pytest.mark.parametrize(
    ("groups", "values"),
    [
        ([[3000]], {}),  # one response: its steps alone
        ([[1000]] * 64, {"engine__count": 1, "engine__max_running_requests": 8}),  # always full
    ],
)
def test_a_fleet_that_never_idles_comes_near_it(
    groups: list[list[int]], values: dict[str, Any]
) -> None:
    it = scenario(groups, **values)
    wall_s = it.alone("oracle").wall_s
    assert 0.97 * wall_s < lower_bound_s(it.responses, it.config) <= wall_s
