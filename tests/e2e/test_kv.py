"""The KV ledger on real servers: the cache is used and no request is retracted."""

import pytest

from tests.e2e.compare import assert_identical, roll
from tests.e2e.conftest import external

pytestmark = pytest.mark.shared_engines


async def test_the_ledger_fills_the_cache_without_a_retraction(engine_urls: list[str]) -> None:
    scheduling = {"chunk_tokens": 256}
    ours, report = await roll(external(engine_urls[:1], scheduling=scheduling), 16)
    assert report["retractions"] == 0
    assert max(engine["kv_peak"] for engine in report["engines"]) > 0.8

    without = scheduling | {"kv_ledger": False}
    theirs, baseline = await roll(external(engine_urls[:1], scheduling=without), 16)
    assert baseline["retractions"] > 0, "the same load without the ledger retracts"
    assert_identical(ours, theirs)
