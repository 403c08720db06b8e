"""The folder of `--out` while a rollout writes there."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from seer_sgl.config import Config, parse
from seer_sgl.console import open_console
from seer_sgl.errors import ConfigError
from seer_sgl.rollout.command import roll_out
from tests.rollout.fakes import PROMPTS, Fakes, fakes
from tests.support.waiting import until


def config_for(folder: Path, it: Fakes) -> Config:
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return parse(it.config_with(rollout={"prompts": str(prompts)}))


@contextlib.asynccontextmanager
async def rolling(config: Config, out: Path) -> AsyncIterator[None]:
    """Rolls out during the block, which begins with the first sample; then interrupts it."""
    work = asyncio.create_task(roll_out(config, out, False, open_console()))
    samples = out / "samples.jsonl"
    try:
        await until(lambda: work.done() or (samples.exists() and samples.stat().st_size > 0))
        assert not work.done()
        yield
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


async def test_a_second_rollout_does_not_replace_the_samples_of_a_living_one(
    tmp_path: Path,
) -> None:
    async with fakes(delay_s=0.05, max_running_requests=2) as it:
        config, out = config_for(tmp_path, it), tmp_path / "out"
        async with rolling(config, out):
            with pytest.raises(ConfigError, match="another rollout is writing there"):
                await roll_out(config, out, True, open_console())
            assert (out / "samples.jsonl").read_bytes()


async def test_a_killed_rollout_leaves_nothing_but_its_samples(tmp_path: Path) -> None:
    async with fakes(delay_s=0.05, max_running_requests=2) as it:
        config, out = config_for(tmp_path, it), tmp_path / "out"
        async with rolling(config, out):
            assert [path.name for path in out.iterdir()] == ["samples.jsonl"]
