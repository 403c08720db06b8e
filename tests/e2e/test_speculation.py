"""Speculation changes no token: drafting engines against a plain, undivided one.

Chains and trees, pages of 1 and of 16 tokens, every chunk forced onto the other engine, also with
its KV through a real Mooncake. Responses end at the same token for every kind of stop.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from bench.elsewhere import AlwaysElsewhere
from seer_sgl.config import KvPoolConfig
from seer_sgl.driver.load_tokenizer import load_tokenizer
from seer_sgl.driver.observer import Observer
from seer_sgl.kvpool.mooncake import open_mooncake
from seer_sgl.processes import free_port
from seer_sgl.rollout.samples import SampleWriter
from seer_sgl.types import Sample
from tests.e2e.compare import Samples, accepted_drafts, assert_identical, roll
from tests.e2e.conftest import MODEL, SERVER_FLAGS, draft_hub, servers, two_cores, two_urls

pytestmark = pytest.mark.own_engines

TOKEN = "a secret of this test"
PROMPTS = 8
STOP_PROMPTS = 3
LONGEST = 256
T1 = {"temperature": 1.0, "max_response_len": LONGEST}
KINDS: Mapping[str, dict[str, Any]] = {
    "T=1": T1,
    "T=0.7": T1 | {"temperature": 0.7},
    "greedy": T1 | {"temperature": 0.0},
    "top-p": T1 | {"top_p": 0.9},
    "top-k": T1 | {"top_k": 8},
    "minimum": T1 | {"min_new_tokens": 200},
}
ENOUGH = 500  # accepted drafts, of about 13,000 tokens
SGLANG = {
    "dtype": "float32",
    "max-total-tokens": 16384,
    "max-running-requests": 32,
    "enable-deterministic-inference": True,
    "skip-server-warmup": True,
}


def config(urls: list[str], sampling: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """Returns the config of a rollout on running servers."""
    return {
        "model": {"path": str(MODEL)},
        "engines": {"launch": "external", "urls": urls, **sections.pop("engines", {})},
        "scheduling": {"chunk_tokens": 96, **sections.pop("scheduling", {})},
        "sampling": sampling,
        "rollout": {"seed": 5},
        **sections,
    }


class Reference(NamedTuple):
    """The undivided samples of a plain engine, by kind of sampling."""

    sampling: Mapping[str, dict[str, Any]]
    samples: Mapping[str, Samples]
    history: Path  # samples.jsonl of "T=1"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Returns the reference for KINDS and for every kind of stop."""
    url, folder = two_urls()[:1], tmp_path_factory.mktemp("plain")
    samples: dict[str, Samples] = {}

    def plain(kind: str, sampling: dict[str, Any], prompts: int, *observers: Observer) -> None:
        undivided = config(url, sampling, scheduling={"divide": False})
        samples[kind], report = asyncio.run(roll(undivided, prompts, observers))
        assert report["accept_length"] is None

    writer = SampleWriter(folder / "history.jsonl")
    with servers(url, [SERVER_FLAGS], folder, cores=two_cores()[:1]):
        plain("T=1", KINDS["T=1"], PROMPTS, writer)
        writer.close()
        kinds = {**KINDS, **kinds_of_stop(samples["T=1"].values())}
        for kind, sampling in kinds.items():
            if kind != "T=1":
                plain(kind, sampling, PROMPTS if kind in KINDS else STOP_PROMPTS)
    return Reference(kinds, samples, folder / "history.jsonl")


def kinds_of_stop(samples: Iterable[Sample]) -> dict[str, dict[str, Any]]:
    """Returns a grammar, and kinds of stop whose two stops often come one after the other."""
    pairs: Counter[tuple[int, int]] = Counter()
    for sample in samples:
        ids = list(sample.response_ids)
        first = {token: ids.index(token) for token in set(ids)}
        pairs.update(pair for pair in pairwise(ids) if first[pair[0]] + 1 == first[pair[1]] > 8)
    [((earlier, later), _)] = pairs.most_common(1)
    tokenizer = load_tokenizer(str(MODEL))
    assert tokenizer is not None
    x, y = (tokenizer.decode([token]).strip() for token in (earlier, later))
    return {
        "stop: [later, earlier]": T1 | {"stop": [y, x]},
        "stop: [earlier, later]": T1 | {"stop": [x, y]},
        "stop_token_ids before stop": T1 | {"stop_token_ids": [earlier], "stop": [y]},
        "stop before stop_token_ids": T1 | {"stop_token_ids": [later], "stop": [x]},
        "no_stop_trim": T1 | {"stop": [y, x], "no_stop_trim": True},
        "stop_regex": T1 | {"stop_regex": [y, f"{x}|{y} ."], "stop_token_ids": [later]},
        "min_new_tokens": T1 | {"stop_token_ids": [later], "stop": [y], "min_new_tokens": 40},
        "grammar": T1 | {"regex": "( [0-9]){30} ok"},  # token by token
    }


@contextlib.contextmanager
def drafting(
    folder: Path, environment: pytest.MonkeyPatch, pool: dict[str, Any]
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Starts one engine that drafts chains and one that drafts trees: URLs, and config sections."""
    environment.setenv("SEER_SGL_LINK_TOKEN", TOKEN)
    urls, hub = two_urls(), f"127.0.0.1:{free_port()}"
    sections: dict[str, Any] = {
        "engines": {"link": f"127.0.0.1:{free_port()}", "sglang": SGLANG},
        "draft": {"scope": "fleet", "hub": hub},
        **pool,
    }
    fleets = []
    for paths in (1, 4):
        fleet = config(urls, T1, **sections) | {"draft": {**sections["draft"], "paths": paths}}
        file = folder / f"paths{paths}.yaml"
        file.write_text(yaml.safe_dump(fleet))
        fleets.append(["--fleet", str(file)])
    with draft_hub(hub), servers(urls, fleets, folder, cores=two_cores()):
        yield urls, sections


@pytest.fixture(scope="module")
def pair(
    reference: Reference, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yields drafting engines without a pool, after the reference's engine has ended."""
    folder = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as own, drafting(folder, own, {}) as running:
        yield running


async def every_chunk_elsewhere(
    reference: Reference,
    kinds: Iterable[str],
    running: tuple[list[str], dict[str, Any]],
    placement: AlwaysElsewhere,
) -> list[Any]:
    """Repeats the reference with every chunk forced onto the other engine. Returns the reports."""
    urls, sections = running
    reports = []
    for kind in kinds:
        again = config(urls, reference.sampling[kind], **sections)
        parts, report = await roll(again, PROMPTS, placement=placement)
        assert_identical(reference.samples[kind], parts)
        assert report["retractions"] == 0
        assert report["samples"] == 8 * PROMPTS
        assert report["migrations"] == report["chunks"] - report["samples"] > 0
        assert accepted_drafts(report) > ENOUGH
        reports.append(report)
    return reports


async def test_no_token_changes_when_every_chunk_is_computed_again_elsewhere(
    reference: Reference, pair: tuple[list[str], dict[str, Any]]
) -> None:
    kinds = ("T=1", "greedy", "top-p", "minimum")
    reports = await every_chunk_elsewhere(reference, kinds, pair, AlwaysElsewhere())
    assert all(report["recomputed_tokens"] > 0 for report in reports)


@pytest.mark.parametrize(
    ("chunk_tokens", "with_history"),
    [
        (3, True),
        (64, False),
        pytest.param(3, False, marks=pytest.mark.long),
        pytest.param(64, True, marks=pytest.mark.long),
    ],
)
async def test_two_ways_to_stop_end_a_drafted_response_where_they_end_a_plain_one(
    reference: Reference,
    pair: tuple[list[str], dict[str, Any]],
    chunk_tokens: int,
    with_history: bool,
) -> None:
    urls, sections = pair
    if with_history:
        draft = {**sections["draft"], "history": str(reference.history)}
        sections = sections | {"draft": draft}
    stops = [kind for kind in reference.sampling if kind not in KINDS]
    accepted: dict[str, int] = {}
    for kind in stops:
        divided = {"scheduling": {"chunk_tokens": chunk_tokens}}
        again = config(urls, reference.sampling[kind], **sections, **divided)
        parts, report = await roll(again, STOP_PROMPTS)
        assert_identical(reference.samples[kind], parts)
        assert [one["engine_id"] for one in report["drafting"]["engines"]] == ["e0", "e1"]
        accepted[kind] = accepted_drafts(report)
        whole = {"stop_regex", "regex"} & set(reference.sampling[kind])  # not divided
        assert whole or report["chunks"] > report["samples"]
        stopped = [sample for sample in parts.values() if sample.finish_reason == "stop"]
        assert len(stopped) > len(parts) / 2, kind
    assert sum(accepted.values()) > ENOUGH, accepted
    ends = {type(s.matched) for kind in stops for s in reference.samples[kind].values()}
    assert ends >= {int, str}


async def test_no_token_changes_when_requests_are_retracted_in_the_middle_of_drafts(
    tmp_path: Path, reference: Reference
) -> None:
    crowded = {
        "model": {"path": str(MODEL)},
        "engines": {"cores": "auto", "sglang": {**SGLANG, "max-total-tokens": 3072}},
        "scheduling": {"divide": False, "kv_ledger": False},
        "draft": {"scope": "engine"},
        "sampling": T1,
        "rollout": {"seed": 5},
    }
    parts, report = await roll(crowded, PROMPTS, log_dir=tmp_path)
    assert report["retractions"] > 0
    assert accepted_drafts(report) > ENOUGH
    assert_identical(reference.samples["T=1"], parts)


async def test_no_token_changes_when_the_kv_of_every_chunk_moves_through_mooncake(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_mooncake(KvPoolConfig(backend="mooncake", memory="256mb"), tmp_path) as master:
        pool = {
            "kv_pool": {
                "backend": "mooncake",
                "master": master,
                "namespace": "this-test",
                "page_size": 16,
            }
        }
        with drafting(tmp_path, monkeypatch, pool) as running:
            reports = await every_chunk_elsewhere(
                reference, KINDS, running, AlwaysElsewhere(fetch=True)
            )
    assert sum(report["cached_tokens"]["storage"] for report in reports) > 0
