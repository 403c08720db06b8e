"""Speculation changes no token: drafting engines against a plain, undivided one.

Chains and trees, pages of 1 and of 16 tokens, every chunk forced onto the other engine, and with a
pool, its KV through a real Mooncake.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.elsewhere import AlwaysElsewhere
from seer_sgl.config import KvPoolConfig
from seer_sgl.kvpool.mooncake import open_mooncake
from seer_sgl.processes import free_port
from tests.e2e.compare import Samples, accepted_drafts, assert_identical, roll
from tests.e2e.conftest import MODEL, SERVER_FLAGS, servers, two_cores, two_urls

pytestmark = pytest.mark.own_engines

TOKEN = "a secret of this test"
PROMPTS = 8
KINDS: Mapping[str, dict[str, Any]] = {
    "T=1": {"temperature": 1.0},
    "T=0.7": {"temperature": 0.7},
    "greedy": {"temperature": 0.0},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "top-k": {"temperature": 1.0, "top_k": 8},
}
LONGEST = 256
ENOUGH = 500  # accepted drafts, of some 13,000 tokens
SGLANG = {
    "dtype": "float32",
    "max-total-tokens": 16384,
    "max-running-requests": 32,
    "enable-deterministic-inference": True,
    "skip-server-warmup": True,
}


def config(urls: list[str], kind: str, **sections: Any) -> dict[str, Any]:
    """A rollout over servers that run already."""
    return {
        "model": {"path": str(MODEL)},
        "engines": {"launch": "external", "urls": urls, **sections.pop("engines", {})},
        "scheduling": {"chunk_tokens": 96, **sections.pop("scheduling", {})},
        "sampling": {"max_response_len": LONGEST, **KINDS[kind]},
        "rollout": {"seed": 5},
        **sections,
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Samples]:
    """What a plain engine makes of undivided requests, by kind of sampling."""
    url = two_urls()[:1]
    found: dict[str, Samples] = {}
    with servers(url, [SERVER_FLAGS], tmp_path_factory.mktemp("plain"), cores=two_cores()[:1]):
        for kind in KINDS:
            undivided = config(url, kind, scheduling={"divide": False})
            found[kind], report = asyncio.run(roll(undivided, PROMPTS))
            assert report["accept_length"] is None
    return found


async def drafted(
    tmp_path: Path, reference: dict[str, Samples], pool: dict[str, Any], placement: AlwaysElsewhere
) -> list[Any]:
    """The reference again, on one engine that drafts chains and one that drafts trees; reports."""
    urls = two_urls()
    sections = {
        "engines": {"link": f"127.0.0.1:{free_port()}", "sglang": SGLANG},
        "draft": {"scope": "fleet"},
        **pool,
    }
    fleets = []
    for paths in (1, 4):
        fleet = config(urls, "T=1", **sections)
        fleet["draft"] = {"scope": "fleet", "paths": paths}
        file = tmp_path / f"paths{paths}.yaml"
        file.write_text(yaml.safe_dump(fleet))
        fleets.append(["--fleet", str(file)])
    reports = []
    with servers(urls, fleets, tmp_path, cores=two_cores()):
        for kind, whole in reference.items():
            parts, report = await roll(config(urls, kind, **sections), PROMPTS, placement=placement)
            assert_identical(whole, parts)
            assert report["retractions"] == 0
            assert report["migrations"] == report["chunks"] - report["samples"] > 0
            assert accepted_drafts(report) > ENOUGH
            reports.append(report)
    assert sum(report["samples"] for report in reports) == 8 * PROMPTS * len(reference)
    return reports


async def test_no_token_changes_when_every_chunk_is_computed_again_elsewhere(
    tmp_path: Path, reference: dict[str, Samples], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEER_SGL_LINK_TOKEN", TOKEN)
    some = {kind: reference[kind] for kind in ("T=1", "greedy", "top-p")}
    reports = await drafted(tmp_path, some, {}, AlwaysElsewhere())
    assert all(report["recomputed_tokens"] > 0 for report in reports)


async def test_no_token_changes_when_requests_are_retracted_in_the_middle_of_drafts(
    tmp_path: Path, reference: dict[str, Samples]
) -> None:
    crowded = {
        "model": {"path": str(MODEL)},
        "engines": {"cores": "auto", "sglang": {**SGLANG, "max-total-tokens": 3072}},
        "scheduling": {"divide": False, "kv_ledger": False},
        "draft": {"scope": "engine"},
        "sampling": {"max_response_len": LONGEST, **KINDS["T=1"]},
        "rollout": {"seed": 5},
    }
    parts, report = await roll(crowded, PROMPTS, log_dir=tmp_path)
    assert report["retractions"] > 0
    assert accepted_drafts(report) > ENOUGH
    assert_identical(reference["T=1"], parts)


async def test_no_token_changes_when_the_kv_of_every_chunk_moves_through_mooncake(
    tmp_path: Path, reference: dict[str, Samples], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEER_SGL_LINK_TOKEN", TOKEN)
    async with open_mooncake(
        KvPoolConfig(backend="mooncake", memory="256mb"), tmp_path, print
    ) as master:
        pool = {
            "kv_pool": {
                "backend": "mooncake",
                "master": master,
                "namespace": "this-test",
                "page_size": 16,
            }
        }
        reports = await drafted(tmp_path, reference, pool, AlwaysElsewhere(fetch=True))
    assert sum(report["cached_tokens"]["storage"] for report in reports) > 0
