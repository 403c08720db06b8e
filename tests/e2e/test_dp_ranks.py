"""A real SGLang server of two data-parallel ranks: two engines, whose samples are those of a plain
engine, with pool and drafts, with new weights, and when a rank is killed."""

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout, WeightUpdate
from seer_sgl.types import Chunk, ChunkResult
from tests.e2e.compare import (
    Migrations,
    Samples,
    accepted_drafts,
    assert_identical,
    roll,
    roll_singly,
    rolled,
)
from tests.e2e.conftest import HELD_OUT, two_ranks_on_cores
from tests.e2e.moe import moe_model
from tests.e2e.pools import SGLANG, local, pooled
from tests.e2e.weights import other_weights
from tests.helpers import Returns
from tests.support.processes import child
from tests.support.timing import PATIENT
from tests.support.waiting import until

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

PROMPTS = 4
SINGLE = 20  # most requests that run alone
BOTH = ["e0.dp0", "e0.dp1"]


class Chunks(Returns):
    """The chunks of each engine, and the input tokens that each continuation has computed again."""

    def __init__(self) -> None:
        self.on: Counter[str] = Counter()
        self.again: list[int] = []
        self._continued: dict[str, int] = {}  # by rid: input tokens

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        if chunk.request.generated and not chunk.migrated:
            self._continued[chunk.rid] = chunk.input_len

    @override
    def returned(self, result: ChunkResult) -> None:
        rid, reply = result.chunk.rid, result.reply
        self.on[result.chunk.engine_id] += 1
        if reply is not None and rid in self._continued:
            self.again.append(self._continued[rid] - reply.cached_device)


def config(**sections: Any) -> dict[str, Any]:
    flags = {**SGLANG, **sections.pop("sglang", {})}
    scheduling = {"chunk_tokens": 64, **sections.pop("scheduling", {})}
    samples = {"seed": 11, "n_samples_per_prompt": 6}
    given = {"sampling": {"max_response_len": 400}, "rollout": samples, **sections}
    own = local(1, scheduling=scheduling, **given)
    own["engines"]["sglang"] = flags
    return own


def two_ranks(**sections: Any) -> dict[str, Any]:
    own = config(sglang={"dp-size": 2, **sections.pop("sglang", {})}, **sections)
    own["engines"] |= two_ranks_on_cores(1)
    return own


@pytest.fixture(scope="module")
def undivided() -> Samples:
    """The samples of a plain server of one rank."""

    async def generate() -> Samples:
        samples, report = await roll(config(scheduling={"divide": False}), PROMPTS)
        assert report["chunks"] == report["samples"]
        return samples

    return asyncio.run(generate())


async def test_both_ranks_generate_what_a_plain_engine_does_and_keep_their_requests(
    undivided: Samples,
) -> None:
    seen = Chunks()
    parts, report = await roll(two_ranks(), PROMPTS, [seen])
    assert_identical(undivided, parts)
    assert [engine["engine_id"] for engine in report["engines"]] == BOTH
    assert all(seen.on[engine_id] >= 30 for engine_id in BOTH), seen.on
    assert len(seen.again) >= 60
    assert max(seen.again) == 1, "a chunk reaches the rank that has its KV"
    print(report["migrations"], seen.on)


async def test_a_ledger_per_rank_keeps_each_from_preempting(undivided: Samples) -> None:
    parts, report = await roll(two_ranks(sglang={"max-total-tokens": 2048}), PROMPTS)
    assert_identical(undivided, parts)
    assert report["retractions"] == 0
    peaks = [engine["kv_peak"] for engine in report["engines"]]
    assert len(peaks) == 2
    assert min(peaks) > 0.5


@pytest.mark.parametrize("backend", ["file", "mooncake"])
@pytest.mark.parametrize("paths", [1, 4])
async def test_kv_and_drafts_move_between_the_ranks_of_a_server(
    undivided: Samples, backend: str, paths: int
) -> None:
    own = two_ranks(kv_pool=pooled(backend), draft={"scope": "fleet", "paths": paths})
    seen, placement = Migrations(), AlwaysElsewhere(fetch=True)
    async with Rollout(own, placement=placement, timing=PATIENT) as rollout:
        parts, report = await rolled(rollout, PROMPTS, [seen])
        # A busy machine ends reads early: then requests that run alone have the time for them.
        single = rollout.read_prompts(HELD_OUT)[PROMPTS : PROMPTS + SINGLE]
        await roll_singly(rollout, single, [seen], lambda: seen.fetches > 50)
    assert_identical(undivided, parts)
    assert report["cached_tokens"]["storage"] > 0
    assert not seen.left_kv_behind
    assert accepted_drafts(report) > 100
    print(report["fetches"], report["migrations"], report["accept_length"])


@pytest.mark.parametrize("moves", [False, True], ids=["stay", "move"])
async def test_ranks_that_share_one_copy_of_the_model_generate_what_a_plain_engine_does(
    tmp_path: Path, moves: bool
) -> None:
    """SGLang's `enable-dp-attention`, with a mixture of experts: a rank without a request computes
    nothing in step with the other, which SGLang's dense models cannot."""
    few: dict[str, Any] = {
        "model": {"path": str(moe_model(tmp_path))},
        "sampling": {"max_response_len": 40},
        "rollout": {"seed": 11, "n_samples_per_prompt": 3},
    }
    whole, _ = await roll(config(scheduling={"divide": False}, **few), 2)
    flags = {"tp-size": 2, "enable-dp-attention": True}
    seen, moved, pool = Chunks(), Migrations(), {"kv_pool": pooled("file")} if moves else {}
    own = two_ranks(sglang=flags, scheduling={"chunk_tokens": 16}, **few, **pool)
    placement = AlwaysElsewhere(fetch=True) if moves else None
    async with Rollout(own, placement=placement, timing=PATIENT) as rollout:
        parts, report = await rolled(rollout, 2, [seen, moved])
        if moves:
            single = rollout.read_prompts(HELD_OUT)[2 : 2 + SINGLE]
            await roll_singly(rollout, single, [moved], lambda: moved.fetches >= len(parts))
    assert_identical(whole, parts)
    assert all(seen.on[engine_id] >= 5 for engine_id in BOTH), seen.on
    assert report["chunks"] >= 2 * report["samples"]
    if moves:
        assert report["cached_tokens"]["storage"] > 0
    else:
        assert seen.again
        assert max(seen.again) == 1, "a chunk reaches the rank that has its KV"


async def test_both_ranks_get_new_weights_in_the_middle_of_a_rollout(tmp_path: Path) -> None:
    other = str(other_weights(tmp_path / "other", factor=1.1))
    async with Rollout(two_ranks()) as rollout:
        seen = Chunks()
        rolling = asyncio.create_task(rolled(rollout, PROMPTS, [seen]))
        await until(lambda: seen.on.total() >= 40)
        await rollout.backend.update_weights(WeightUpdate.from_disk(other, version="new"))
        samples, report = await rolling
        versions = {engine.info.weight_version for engine in rollout.fleet.engines}
        names = {engine.info.weights for engine in rollout.fleet.engines}
        fresh, _ = await rolled(rollout, PROMPTS)
    assert versions == {"new"}
    assert len(names) == 1
    assert any(len(sample.weight_spans) > 1 for sample in samples.values())
    # A chunk that is taken back before its first token counts as lost, and costs nothing.
    assert (report["retries"], report["wasted_tokens"]) == (0, 0)
    plain = config(scheduling={"divide": False})
    plain["model"] = {"path": other}
    async with Rollout(plain) as rollout:
        for _ in range(2):  # a later run draws other seeds
            whole, _ = await rolled(rollout, PROMPTS)
    assert_identical(whole, fresh)


async def test_a_rank_that_is_killed_takes_its_server_out_and_no_sample_is_lost(
    undivided: Samples,
) -> None:
    async with Rollout(two_ranks()) as rollout:
        seen = Chunks()
        rolling = asyncio.create_task(rolled(rollout, PROMPTS, [seen]))
        await until(lambda: seen.on.total() >= 40)
        server = child("seer_sgl.plugin.server")
        schedulers = [
            each for each in server.children(recursive=True) if "scheduler" in each.cmdline()[0]
        ]
        assert len(schedulers) == 2
        schedulers[1].send_signal(signal.SIGKILL)
        parts, report = await rolling
    assert_identical(undivided, parts)
    for engine in report["engines"]:
        states = [each["state"] for each in engine["states"]]
        assert {"dead", "starting"} & set(states), "whichever the monitor sees first"
        assert states[-1] == "healthy", engine
