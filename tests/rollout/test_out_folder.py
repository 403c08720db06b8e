"""The folder of `--out` while a rollout writes there."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from seer_sgl.config import parse
from seer_sgl.console import open_console
from seer_sgl.errors import ConfigError
from seer_sgl.rollout.command import roll_out
from tests.rollout.fakes import PROMPTS, fakes
from tests.support.waiting import until


async def test_the_folder_of_a_living_rollout_has_its_samples_only_and_no_second_one_replaces_them(
    tmp_path: Path,
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    samples = out / "samples.jsonl"
    async with fakes(delay_s=0.05, max_running_requests=2) as it:
        config = parse(it.config_with(rollout={"prompts": str(prompts)}))
        work = asyncio.create_task(roll_out(config, out, False, open_console()))
        try:
            await until(lambda: work.done() or (samples.exists() and samples.stat().st_size > 0))
            assert not work.done()
            assert [path.name for path in out.iterdir()] == ["samples.jsonl"]
            with pytest.raises(ConfigError, match="another rollout is writing there"):
                await roll_out(config, out, True, open_console())
            assert samples.read_bytes()
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
