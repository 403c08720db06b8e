"""A KV pool without room for everything: the oldest KV goes, and its request is prefilled again."""

import pytest

from seer_sgl.report.report import report
from seer_sgl.sim.cache import SimulatedPool
from seer_sgl.sim.simulate import Simulated, simulate
from seer_sgl.sim.workload import sample
from tests.sim.helpers import CROWDED, rolled, small

TOKEN_GB = 131_072 / 1e9


def limited(gb: float | None) -> Simulated:
    """Returns a rollout of small, busy engines with a pool of that size."""
    config = small(*CROWDED, f"pool.capacity_gb={'null' if gb is None else gb}")
    return simulate(sample(config.workload), config)


def test_the_oldest_kv_goes_first_and_what_is_written_again_is_new() -> None:
    pool = SimulatedPool(100)
    for uid in ("a", "b", "c", "a"):
        pool.put(uid, 30)
    pool.put("d", 40)
    assert [pool.length(uid) for uid in "abcd"] == [30, 0, 30, 40]
    pool.take("a")
    assert (pool.tokens, pool.peak) == (70, 100)


def test_a_request_whose_kv_is_gone_is_prefilled_again() -> None:
    whole = limited(None)
    assert report(whole.record)["recomputed_tokens"] == 0
    peak_gb = whole.pool_peak * TOKEN_GB
    half = limited(peak_gb / 2)
    assert half.pool_peak * TOKEN_GB <= peak_gb / 2
    assert report(half.record)["recomputed_tokens"] > 1000
    assert sum(half.record.finished_at) > sum(whole.record.finished_at)
    assert report(half.record)["response_tokens"] == report(whole.record)["response_tokens"]


def test_a_pool_as_large_as_the_peak_changes_nothing() -> None:
    whole = limited(None)
    enough = limited(whole.pool_peak * TOKEN_GB * 1.001)
    assert list(enough.record.finished_at) == list(whole.record.finished_at)


def test_the_peak_is_the_kv_of_all_responses_that_are_begun() -> None:
    lengths = 'workload.lengths={"mean": 2500, "max": 2500, "sigma": 0, "group_share": 0.5}'
    config = small("workload.groups=1", "workload.n_samples_per_prompt=4", lengths)
    run = simulate(sample(config.workload), config)
    assert run.pool_peak == 4 * (200 + 2000), "two of three chunks each, prompts included"


@pytest.mark.parametrize("chunk", [500, 1000])
def test_a_chunk_that_begins_takes_its_time_from_the_engine(chunk: int) -> None:
    lengths = 'workload.lengths={"mean": 2000, "max": 2000, "sigma": 0, "group_share": 0.5}'
    alone = ("workload.groups=1", "workload.n_samples_per_prompt=1", lengths)
    chunks = f"scheduling.chunk_tokens={chunk}"
    free, priced = (
        report(rolled(small(*alone, chunks, f"engine.chunk_ms={ms}")))["wall_s"] for ms in (0, 7)
    )
    assert priced - free == pytest.approx(2000 / chunk * 7e-3, abs=2e-3)
