"""Prompts with images on real servers of a tiny Qwen2-VL: divided requests that move and are
drafted have the samples of undivided ones."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.config import parse
from seer_sgl.engine.fleet import Fleet, open_fleet
from seer_sgl.types import ChunkResult
from tests.e2e.compare import Migrations, Samples, assert_identical, by_key
from tests.e2e.vision import SGLANG, vision_model, vision_prompts
from tests.support.timing import PATIENT

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

LENGTH, CHUNK = 48, 16


class Inputs(Migrations):
    """The input tokens of each chunk that came back: as planned, and as the engine counted."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: list[tuple[int, int | None]] = []

    def returned(self, result: ChunkResult) -> None:
        super().returned(result)
        if result.reply is not None and result.chunk.continues:
            self.planned.append((result.chunk.input_len, result.reply.input_tokens))


@contextlib.asynccontextmanager
async def engines(
    folder: Path, model: Path, **sections: dict[str, Any]
) -> AsyncIterator[tuple[dict[str, Any], Fleet]]:
    """Starts two engines; yields the config of a rollout on them, and the fleet."""
    config = {
        "model": {"path": str(model)},
        "engines": {"count": 2, "cores": "auto", "sglang": SGLANG},
        "sampling": {"max_response_len": LENGTH, "ignore_eos": True},
        "rollout": {"seed": 11, "n_samples_per_prompt": 4},
        **sections,
    }
    async with open_fleet(parse(config).fleet, folder / "logs", PATIENT) as fleet:
        yield config, fleet


async def roll(
    config: dict[str, Any],
    fleet: Fleet,
    prompts: list[dict[str, Any]],
    seen: Migrations | None = None,
    placement: AlwaysElsewhere | None = None,
    **scheduling: Any,
) -> tuple[Samples, Any]:
    """Returns the samples of the prompts and the report. The engines' own caches begin empty."""
    for engine in fleet.engines:
        await engine.flush()
    config = {**config, "scheduling": {"chunk_tokens": CHUNK, **scheduling}}
    async with Rollout(config, fleet=fleet, placement=placement, timing=PATIENT) as rollout:
        observers = [] if seen is None else [seen]
        groups = [group async for group in rollout.run(prompts, observers)]
        return by_key([s for group in groups for s in group.samples]), rollout.report()


async def test_chunks_behind_images_equal_undivided_requests(tmp_path: Path) -> None:
    model = vision_model(tmp_path)
    prompts = vision_prompts(model, 6)
    prompts[1] = {"id": "p1", "prompt_ids": [40, 41, 42, 43]}  # text among images
    async with engines(tmp_path, model) as (config, fleet):
        assert all(engine.info.continues_images for engine in fleet.engines)
        whole, plain = await roll(config, fleet, prompts, divide=False)
        assert plain["chunks"] == plain["samples"] == 24

        seen = Inputs()
        parts, moved = await roll(config, fleet, prompts, seen, AlwaysElsewhere())
        assert_identical(whole, parts)
        assert moved["migrations"] == 48
        assert len(seen.planned) == 48
        assert all(given in (planned, None) for planned, given in seen.planned)

        seen = Inputs()
        parts, stayed = await roll(config, fleet, prompts, seen)
        assert_identical(whole, parts)
        assert stayed["recomputed_tokens"] == 0

        others, _ = await roll(config, fleet, swapped(prompts), divide=False)
        differ = [key for key in whole if whole[key].response_ids != others[key].response_ids]
        assert len(differ) == 16, "all samples of the four prompts whose images were exchanged"


def swapped(prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns prompts of which two pairs have exchanged their images."""
    exchanged = {0: 4, 4: 0, 2: 5, 5: 2}
    images = {i: prompts[j]["image_data"] for i, j in exchanged.items()}
    return [
        {**prompt, "image_data": images[i]} if i in images else prompt
        for i, prompt in enumerate(prompts)
    ]
