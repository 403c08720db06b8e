"""Routed experts of a tiny mixture of experts on real servers: requests that are divided, moved,
drafted, preempted or updated have the rows of undivided ones."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.elsewhere import AlwaysElsewhere
from bench.engine_plugin import environment
from seer_sgl import WeightUpdate
from seer_sgl.rollout.samples import encode_sample
from seer_sgl.types import ChunkResult, Sample
from tests.e2e.calls import post
from tests.e2e.compare import Migrations, Samples, accepted_drafts, collected, roll_singly
from tests.e2e.moe import (
    SGLANG,
    STOCK,
    generate,
    moe_model,
    moe_prompts,
    prefilled,
    rows_of,
)
from tests.e2e.pools import pooled
from tests.e2e.rig import PAGE
from tests.e2e.two_engines import SIBLINGS, TwoEngines, two_engines
from tests.helpers import Returns
from tests.support.waiting import until

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

LENGTH, CHUNK = 160, 24
FEW, MANY = moe_prompts(4), moe_prompts(16)
TIES = 2  # of some 600 places of a sample
NO_POOL = {"backend": "none"}
NO_DRAFTS: dict[str, Any] = {"scope": "none"}
CHAINS, TREES = ({"scope": "engine", "paths": paths} for paths in (1, 4))


class After(Returns):
    """Counts the chunks that came back."""

    def __init__(self) -> None:
        self.chunks = 0

    def returned(self, result: ChunkResult) -> None:
        self.chunks += result.reply is not None


def engines(
    folder: Path,
    patch: pytest.MonkeyPatch,
    pool: dict[str, Any],
    draft: dict[str, Any],
    *,
    entry: str = "leave_to_sglang",
    tokens: int = 8192,
) -> AbstractAsyncContextManager[TwoEngines]:
    """Starts two engines with a plugin of tests/e2e/moe.py. `tokens`: KV tokens of each."""
    for name, value in environment(folder / "plugin", "moe", f"tests.e2e.moe:{entry}").items():
        patch.setenv(name, value)
    return two_engines(
        folder,
        moe_model(folder),
        {**SGLANG, "max-total-tokens": tokens},
        kv_pool=pool,
        draft=draft,
        scheduling={"chunk_tokens": CHUNK},
        sampling={"max_response_len": LENGTH, "ignore_eos": True, "return_routed_experts": True},
    )


async def roll_preempted(
    it: TwoEngines, prompts: list[dict[str, Any]], history: Path | None
) -> tuple[Samples, Any]:
    """Rolls out; the engines preempt all their requests again and again."""
    seen = After()
    rolling = asyncio.create_task(it.roll(prompts, None, [seen], history=history))
    for chunks in range(4, 60, 6):
        await until(lambda: rolling.done() or seen.chunks >= chunks)  # noqa: B023
        for url in it.urls:
            await asyncio.to_thread(post, f"{url}/pause_generation", mode="retract")
            await asyncio.to_thread(post, f"{url}/continue_generation", rid="")
    return await rolling


def assert_same_tokens(whole: Samples, parts: Samples) -> None:
    """With weights that make the output chaotic, rounding changes log probabilities more."""
    assert whole.keys() == parts.keys()
    for key, sample in whole.items():
        assert parts[key].response_ids == sample.response_ids, key


def differing(whole: Samples, parts: Samples) -> list[tuple[str, int]]:
    """Returns the samples with other rows. Asserts equal tokens.

    A verification rounds otherwise than a plain step, so a router may rank experts otherwise at a
    near tie: at up to TIES places of a sample, tokens x layers, one of its experts may differ.
    """
    assert_same_tokens(whole, parts)
    return [key for key in whole if not _same_rows(rows_of(whole[key]), rows_of(parts[key]))]


def _same_rows(rows: Any, others: Any) -> bool:
    if rows.shape != others.shape:
        return False
    places = np.argwhere((rows != others).any(axis=2))
    return len(places) <= TIES and all(set(rows[i, j]) & set(others[i, j]) for i, j in places)


def assert_computed_at_once(samples: Samples, url: str) -> None:
    """Asserts that samples have the rows that an engine returns for all of their tokens at once,
    and that hardly any two rows are equal.

    A decode step rounds otherwise than a prefill. Of 10,000 places of 16 samples one is so near a
    tie that it differs: in float64 the probabilities of its two experts are 7e-8 apart, and at the
    median place 0.07. So up to TIES places of all samples may have one other expert.
    """
    differing = 0
    for key, sample in samples.items():
        rows, at_once = rows_of(sample), prefilled(url, sample)
        assert _same_rows(rows, at_once), key
        differing += int((rows != at_once).any(axis=2).sum())
    assert differing <= TIES
    each = [row.tobytes() for sample in samples.values() for row in rows_of(sample)]
    assert len(set(each)) > 1000


def history_of(samples: Samples, path: Path) -> Path:
    """Writes samples, from which the same rollout drafts its own tokens."""
    path.write_bytes(b"\n".join(map(encode_sample, samples.values())))
    return path


def pages_in(stored: Path) -> int:
    """Returns the number of files in a pool."""
    return sum(1 for _ in stored.iterdir())


async def check_control(urls: list[str], stored: Path) -> None:
    """Asserts that stock SGLang returns other rows for KV from the pool, and that ours do not.

    stored: the folder of the pool.
    """
    ids = [int(token) for token in np.random.default_rng(5).integers(5, 250, 12 * PAGE + 3)]
    equal: dict[str, bool] = {}
    for first, (kind, start, params) in enumerate(
        (
            ("all, ours", 0, {}),
            ("the last, ours", len(ids), {}),
            ("all, stock", 0, {"custom_params": {STOCK: True}}),
            ("the last, stock", len(ids), {"custom_params": {STOCK: True}}),
        )
    ):
        asked = [10 + first, *ids]  # others than before: the device has none of their KV
        pages = pages_in(stored)
        true, _ = generate(urls[0], asked)
        await until(lambda: pages_in(stored) >= pages + 12)  # noqa: B023
        rows, meta = generate(urls[1], asked, start, **params)
        from_pool = (meta["cached_tokens_details"] or {}).get("storage", 0)
        assert (from_pool >= 11 * PAGE) == (kind != "all, ours"), (kind, meta)
        equal[kind] = np.array_equal(rows, true[start:])
    assert equal == {
        "all, ours": True,
        "the last, ours": True,
        "all, stock": False,
        "the last, stock": True,
    }


async def test_requests_whose_kv_comes_from_the_pool_have_the_rows_of_undivided_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = tmp_path / "pool"
    stored.mkdir()
    pool = pooled("file", directory=str(stored))
    async with engines(tmp_path, monkeypatch, pool, TREES, tokens=1536) as it:
        whole, plain = await it.roll(FEW, divide=False)
        assert plain["chunks"] == plain["samples"] == SIBLINGS * len(FEW)
        history = history_of(whole, tmp_path / "history.jsonl")
        seen = Migrations()
        async with it.opened(AlwaysElsewhere(fetch=True), history=history) as rollout:
            parts, moved = await collected(rollout.run(FEW, [seen])), rollout.report()
            # A busy machine ends reads early: then requests that run alone have the time for them.
            single = rollout.prompt_reader().convert(MANY[len(FEW) :])
            await roll_singly(rollout, single, [seen], lambda: seen.fetches > 20)
        assert not differing(whole, parts)
        assert moved["cached_tokens"]["storage"] > 0
        assert accepted_drafts(moved) > 200
        await check_control(it.urls, stored)


@pytest.mark.parametrize("draft", [NO_DRAFTS, CHAINS, TREES], ids=["plain", "chains", "trees"])
@pytest.mark.parametrize("backend", ["none", "file", "mooncake"])
async def test_every_way_to_move_and_to_draft_leaves_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, draft: dict[str, Any]
) -> None:
    pool = NO_POOL if backend == "none" else pooled(backend)
    async with engines(tmp_path, monkeypatch, pool, draft, tokens=1536) as it:
        whole, _ = await it.roll(MANY, divide=False)
        assert_computed_at_once(whole, it.urls[0])
        history = None if draft is NO_DRAFTS else history_of(whole, tmp_path / "history.jsonl")
        for placement in (None, AlwaysElsewhere(fetch=backend != "none")):
            parts, report = await it.roll(MANY, placement, history=history)
            assert len(whole) == SIBLINGS * len(MANY) and not differing(whole, parts)
            ties = sum(
                int((rows_of(whole[k]) != rows_of(parts[k])).any(axis=2).sum()) for k in whole
            )
            print(backend, draft, ties, report["cached_tokens"], report["migrations"])
            assert draft is NO_DRAFTS or accepted_drafts(report) > 200
        assert report["migrations"] > 20
        parts, report = await roll_preempted(it, MANY, history)
        assert not differing(whole, parts)
        assert report["retractions"] > 10


async def test_rows_that_do_not_move_with_the_kv_of_a_tree_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engines(tmp_path, monkeypatch, NO_POOL, TREES, entry="leave_rows_of_trees") as it:
        whole, _ = await it.roll(MANY, divide=False)
        history = history_of(whole, tmp_path / "history.jsonl")
        parts, _ = await it.roll(MANY, history=history)
        whole_again = {key: prefilled(it.urls[0], sample) for key, sample in parts.items()}
    assert_same_tokens(whole, parts)
    assert not all(np.array_equal(rows_of(parts[key]), rows) for key, rows in whole_again.items())


def by_version(sample: Sample, rows: dict[str, Any]) -> bool:
    """Returns whether a sample has the rows of its tokens' own weights. `rows`: by version, of all
    tokens computed at once."""
    begin, own = 0, rows_of(sample)
    end = len(sample.prompt_ids) - 1
    for span in sample.weight_spans:
        end += span.tokens
        if not np.array_equal(own[begin:end], rows[span.version][begin:end]):
            return False
        begin = end
    return begin == len(own)


@pytest.mark.parametrize("draft", [NO_DRAFTS, TREES], ids=["plain", "trees"])
async def test_a_weight_update_leaves_the_rows_of_the_tokens_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draft: dict[str, Any]
) -> None:
    other = str(moe_model(tmp_path / "other", factor=1.1))
    async with engines(tmp_path, monkeypatch, pooled("file"), draft) as it:
        async with it.opened() as rollout:
            seen = After()
            update = WeightUpdate.from_disk(other, version="new")

            async def renew() -> None:
                await until(lambda: seen.chunks >= 40)
                await rollout.backend.update_weights(update)

            samples, _ = await asyncio.gather(collected(rollout.run(MANY, [seen])), renew())
        assert len(samples) == SIBLINGS * len(MANY)
        rows: dict[tuple[str, int], dict[str, Any]] = {key: {} for key in samples}
        for version, folder in (("new", other), ("default", str(tmp_path / "qwen3-moe"))):
            for url in it.urls:
                post(f"{url}/flush_cache?timeout=60")
                post(f"{url}/update_weights_from_disk", model_path=folder)
            for key, sample in samples.items():
                rows[key][version] = prefilled(it.urls[0], sample)
        for key, sample in samples.items():
            assert by_version(sample, rows[key]), sample.weight_spans
            old, new = rows[key].values()
            assert not np.array_equal(old, new)
        assert sum(len(sample.weight_spans) > 1 for sample in samples.values()) >= 16
