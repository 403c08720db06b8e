"""KV moves between real SGLang servers through a real Mooncake: same tokens, almost no prefill."""

from pathlib import Path
from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl.config import FlagValue
from tests.e2e.compare import Migrations, assert_identical, roll
from tests.e2e.conftest import MODEL

pytestmark = pytest.mark.own_engines

PAGE = 16
SGLANG: dict[str, FlagValue] = {
    "dtype": "float32",
    "max-total-tokens": 16384,
    "max-running-requests": 48,
    "enable-deterministic-inference": True,
    "skip-server-warmup": True,
}


def local(count: int, **sections: dict[str, Any]) -> dict[str, Any]:
    """A config that starts its own servers, one core each."""
    return {
        "model": {"path": str(MODEL)},
        "engines": {"count": count, "cores": "auto", "sglang": SGLANG},
        "scheduling": {"chunk_tokens": 128, **sections.pop("scheduling", {})},
        "sampling": {"max_response_len": 3000, **sections.pop("sampling", {})},
        "rollout": {"seed": 11},
        **sections,
    }


def pooled(backend: str, **keys: Any) -> dict[str, Any]:
    return {"backend": backend, "page_size": PAGE, "memory": "256mb", **keys}


@pytest.mark.parametrize("backend", ["mooncake", "file"])
async def test_every_chunk_moves_with_its_kv_and_no_token_changes(
    backend: str, tmp_path: Path
) -> None:
    whole, plain = await roll(local(1, scheduling={"divide": False}), 8, log_dir=tmp_path / "plain")
    assert plain["chunks"] == plain["samples"] == 64
    seen = Migrations()
    parts, report = await roll(
        local(2, kv_pool=pooled(backend, directory=str(tmp_path / "pages"))),
        8,
        [seen],
        placement=AlwaysElsewhere(fetch=True),
        log_dir=tmp_path / "pool",
    )
    assert_identical(whole, parts)
    assert len(seen.recomputed) == report["migrations"] >= 200
    within_a_page = [tokens <= PAGE + 1 for tokens in seen.recomputed]
    assert sum(within_a_page) >= 0.99 * len(within_a_page), sorted(seen.recomputed)[-10:]
    assert report["cached_tokens"]["storage"] > 0
    assert report["retractions"] == 0
