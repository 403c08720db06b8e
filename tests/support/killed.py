"""A rollout in a process that can be killed, on fake servers in this one."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fake_sglang import response_of
from tests.rollout.fakes import LIMIT, LONGEST, PROMPTS, Fakes

REQUESTS = 24


class Driver:
    """A driver process. `folder`: of its config, prompts, journal and samples."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.process = process

    async def kill(self) -> None:
        """Kills it, and waits until the system has ended it."""
        self.process.kill()
        await self.process.wait()

    async def end(self) -> str:
        """Waits until it ends by itself; returns what it has logged."""
        _, output = await self.process.communicate()
        return output.decode()


@contextlib.asynccontextmanager
async def driver(folder: Path, *options: str, limit: int | None = None) -> AsyncIterator[Driver]:
    """Runs the command of a rollout. limit: of its open files."""
    limited = () if limit is None else ("sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh")
    process = await asyncio.create_subprocess_exec(
        *(*limited, sys.executable, "-m", "seer_sgl", "rollout"),
        *("--config", str(folder / "config.yaml")),
        *("--out", str(folder / "out"), *options),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Driver(folder, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def prepare(folder: Path, it: Fakes) -> Path:
    """Writes config and prompts; returns the journal's folder."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    tree = it.config_with(rollout={"prompts": str(prompts), "journal": str(folder / "journal")})
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    return folder / "journal"


def samples_in(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "out" / "samples.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def check_samples(folder: Path) -> None:
    """Fails unless every sample is in the file once, with the tokens of an undivided call."""
    samples = samples_in(folder)
    keys = [(sample["group_id"], sample["index"]) for sample in samples]
    assert len(keys) == len(set(keys)) == REQUESTS
    for sample in samples:
        whole = response_of(sample["seed"], len(sample["prompt_ids"]), LONGEST)
        assert sample["response_ids"] == whole[:LIMIT]
        logprobs = [-1.0 - token / 1000 for token in whole[:LIMIT]]
        assert sample["rollout_log_probs"] == pytest.approx(logprobs, abs=1e-6)
