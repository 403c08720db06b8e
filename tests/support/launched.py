"""Rollouts on fake servers that the real launcher starts; their model has no tokenizer."""

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from seer_sgl import Rollout
from seer_sgl.config import parse
from seer_sgl.engine.fleet import open_fleet
from seer_sgl.timing import Timing
from seer_sgl.types import Group
from tests.support.fleets import check_sample

OURS = ("recovery_timeout_s", "stall_timeout_s")  # settings of the driver
RESTARTING = Timing(poll_s=0.05, watch_s=0.05, restart_most_s=0.2)
PROMPT_LEN = 7
PROMPTS = [{"prompt_ids": [5 + i] * PROMPT_LEN, "id": f"p{i}"} for i in range(12)]


def weights_folder(folder: Path, weights: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "weights").write_text(weights)
    return folder


def config(model: Path, starts: Path, mode: str = "serve", **sections: Any) -> dict[str, Any]:
    starts.mkdir(exist_ok=True)
    flags = {"mode": mode, "longest": 300, "delay-s": 0.1, "prompt-len": PROMPT_LEN}
    return {
        "model": {"path": str(model)},
        "engines": {
            "count": 2,
            "sglang": {**flags, "starts": str(starts)},
            **sections.pop("engines", {}),
        },
        "scheduling": {"chunk_tokens": 16},
        "sampling": {"max_response_len": 250},
        "rollout": {"n_samples_per_prompt": 4, "seed": 1},
        **sections,
    }


@contextlib.asynccontextmanager
async def rolling(
    settings: dict[str, Any], tmp_path: Path, timing: Timing = RESTARTING
) -> AsyncIterator[Rollout]:
    """Opens a rollout of a fleet that the real launcher starts; its model has no tokenizer."""
    async with open_fleet(parse(settings).fleet, tmp_path / "logs", timing) as fleet:
        urls = [engine.info.url for engine in fleet.engines if engine.info.url]
        engines = {key: settings["engines"][key] for key in OURS if key in settings["engines"]}
        outside = {**settings, "engines": {"launch": "external", "urls": urls, **engines}}
        del outside["model"]
        async with Rollout(outside, fleet=fleet, timing=timing) as rollout:
            yield rollout


def pid_of(starts: Path, url: str) -> int:
    """Returns the process id of the newest server at a URL."""
    return int((starts / url.rpartition(":")[2]).read_text().split()[-1])


def started(starts: Path, url: str) -> int:
    return len((starts / url.rpartition(":")[2]).read_text().split())


def kill(starts: Path, url: str) -> None:
    os.kill(pid_of(starts, url), signal.SIGKILL)


def check(groups: list[Group]) -> None:
    assert sorted(group.group_id for group in groups) == sorted(str(p["id"]) for p in PROMPTS)
    for group in groups:
        assert sorted(sample.index for sample in group.samples) == [0, 1, 2, 3]
        for sample in group.samples:
            check_sample(sample, longest=300, limit=250)


async def all_groups(rollout: Rollout) -> list[Group]:
    return [group async for group in rollout.run(PROMPTS)]
