"""The KV ledger on real servers: the cache is used and no request is retracted. Without it requests
are retracted, in the middle of drafts too, and keep their tokens."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.compare import accepted_drafts, assert_identical, roll
from tests.e2e.conftest import SGLANG, external
from tests.e2e.rig import Rig

pytestmark = pytest.mark.shared_engines

PROMPTS, LENGTH = 6, 400
SAMPLING = {"min_new_tokens": LENGTH, "max_response_len": LENGTH}


def config(url: str, **scheduling: Any) -> dict[str, Any]:
    """Returns the config of a driver on one engine."""
    return external([url], sampling=SAMPLING, scheduling=scheduling)


async def test_the_ledger_fills_the_cache_without_a_retraction(rig: Rig) -> None:
    ours, report = await roll(config(rig.plain), PROMPTS)
    assert report["retractions"] == 0
    assert max(engine["kv_peak"] for engine in report["engines"]) > 0.8

    theirs, baseline = await roll(config(rig.plain, kv_ledger=False), PROMPTS)
    assert baseline["retractions"] > 0, "the same load without the ledger retracts"
    assert_identical(ours, theirs)


async def test_no_token_changes_when_requests_are_retracted_in_the_middle_of_drafts(
    rig: Rig, tmp_path: Path
) -> None:
    """On an engine of its own: how much SGLang admits also depends on earlier retractions."""
    whole = await rig.undivided(PROMPTS, sampling=SAMPLING)
    crowded = config(rig.plain, divide=False, kv_ledger=False) | {
        "engines": {"sglang": {**SGLANG, "max-total-tokens": 3072}},
        "draft": {"scope": "engine"},
    }
    samples, report = await roll(crowded, PROMPTS, log_dir=tmp_path)
    assert report["retractions"] > 0
    assert accepted_drafts(report) > 500
    assert_identical(whole, samples)
