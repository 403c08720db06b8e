"""The effect of the policies on toy engines: heavy-tailed rollouts end sooner, with less tail."""

from functools import cache
from typing import Any

import pytest

from tests.scheduling.toy_fleet import Outcome, heavy_tailed, known_from, roll

SEEDS = (1, 2, 3)
FLEETS: dict[str, dict[str, Any]] = {
    "little room": {"engines": 4, "max_inflight": 32},
    "little KV": {"engines": 4, "max_inflight": 64, "capacity": 6000},
}


@cache
def outcome(arm: str, fleet: str, seed: int) -> Outcome:
    lengths = heavy_tailed(100, 8, seed)
    knows = {"oracle": known_from(lengths), "prior": known_from([row[::-1] for row in lengths])}
    policy = "seer" if arm == "prior" else arm
    return roll(policy, lengths, chunk_tokens=64, known=knows.get(arm), **FLEETS[fleet])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fleet", FLEETS)
def test_context_cuts_the_tail_and_lengths_of_earlier_rollouts_cut_it_further(
    fleet: str, seed: int
) -> None:
    unknown, seer = outcome("fcfs", fleet, seed), outcome("seer", fleet, seed)
    prior, oracle = outcome("prior", fleet, seed), outcome("oracle", fleet, seed)
    assert seer.makespan < 0.97 * unknown.makespan
    assert seer.tail < 0.75 * unknown.tail
    assert seer.makespan < 1.12 * oracle.makespan
    assert prior.makespan < min(seer.makespan, 1.04 * oracle.makespan)
    assert prior.tail < 0.9 * seer.tail
