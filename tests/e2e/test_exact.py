"""Divided equals undivided, token for token, where no KV moves.

Seeded, temperature 1, deterministic inference, float32. Every chunk is forced onto the other
engine: the plain one has to recompute the KV of all earlier chunks, and the other one drafts.
test_speculation.py has the ways to stop, fleet/test_driver.py the other kinds of sampling.
"""

import pytest

from bench.elsewhere import AlwaysElsewhere
from tests.e2e.compare import accepted_drafts, assert_identical, roll
from tests.e2e.conftest import external
from tests.e2e.rig import WHOLE, Rig

pytestmark = pytest.mark.shared_engines


async def test_divided_over_two_servers_equals_undivided_on_one(rig: Rig) -> None:
    whole = await rig.undivided(sampling=WHOLE)
    config = external(rig.pair, sampling=WHOLE, scheduling={"chunk_tokens": 96})
    parts, report = await roll(config, 8, placement=AlwaysElsewhere())
    assert_identical(whole, parts)
    assert len(whole) == 64
    assert {sample.finish_reason for sample in whole.values()} >= {"stop", "length"}
    assert max(sample.chunks for sample in parts.values()) > 5
    assert report["migrations"] == report["chunks"] - report["samples"] > report["samples"]
    assert report["recomputed_tokens"] > 0
    assert accepted_drafts(report) > 500
