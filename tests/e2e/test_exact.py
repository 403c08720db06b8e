"""Divided equals undivided, token for token, where no KV moves.

Seeded, temperature 1, deterministic inference, float32. Every chunk is forced onto the other
engine: the plain one has to recompute the KV of all earlier chunks, and the other one drafts.
"""

from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from tests.e2e.compare import Samples, accepted_drafts, assert_identical, roll
from tests.e2e.conftest import external
from tests.e2e.rig import WHOLE, Rig

pytestmark = pytest.mark.shared_engines


async def both_ways(
    rig: Rig, chunk_tokens: int, sampling: dict[str, Any]
) -> tuple[Samples, Samples, Any]:
    """Returns (samples undivided on the plain engine, samples divided over both engines with every
    chunk on the other one, report of the latter)."""
    whole = await rig.undivided(sampling=sampling)
    config = external(rig.pair, sampling=sampling, scheduling={"chunk_tokens": chunk_tokens})
    parts, report = await roll(config, 8, placement=AlwaysElsewhere())
    assert_identical(whole, parts)
    assert len(whole) == 64
    assert report["migrations"] == report["chunks"] - report["samples"]
    assert report["recomputed_tokens"] > 0
    return whole, parts, report


async def test_divided_over_two_servers_equals_undivided_on_one(rig: Rig) -> None:
    whole, parts, report = await both_ways(rig, 96, WHOLE)
    assert max(sample.chunks for sample in parts.values()) > 5
    assert {sample.finish_reason for sample in whole.values()} >= {"stop", "length"}
    assert report["chunks"] > 2 * report["samples"]
    assert accepted_drafts(report) > 500


async def test_min_new_tokens_counts_over_all_chunks_and_is_drafted_for(rig: Rig) -> None:
    least = 200
    whole, _, report = await both_ways(rig, 96, WHOLE | {"min_new_tokens": least})
    assert min(sample.response_length for sample in whole.values()) >= least
    free = await rig.undivided(sampling=WHOLE)
    assert min(sample.response_length for sample in free.values()) < least
    assert accepted_drafts(report) > 500


async def test_string_stops_that_span_chunks_end_where_they_should(rig: Rig) -> None:
    chunk_tokens = 9
    stops = {"stop": ["swap . then", "more . check", "skip ,"]}
    _, parts, _ = await both_ways(rig, chunk_tokens, WHOLE | stops)
    stopped = [sample for sample in parts.values() if isinstance(sample.matched, str)]
    assert len(stopped) >= 16
    for sample in stopped:
        assert str(sample.matched) not in (sample.text or "")
    # Some stops begin in one chunk and end in the next: a token of this model is a word, and fewer
    # words lie after the boundary than the stop has.
    assert any(
        0 < sample.response_length % chunk_tokens < len(str(sample.matched).split())
        for sample in stopped
    )
