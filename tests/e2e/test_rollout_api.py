"""The rollout API on real engines: the tokens of `Rollout.run`, whatever happens to the fleet."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from seer_sgl import Rollout
from tests.server.helpers import served_config
from tests.server.rollout_client import groups_of, rollout

from .conftest import ROOT
from .drivers import assert_same_samples, lines_of
from .held_out import texts
from .rig import Rig

pytestmark = pytest.mark.shared_engines

SEED = 11  # of `external`
FREE_PORT = {"server": {"port": 0}}


def lines_of_prompts(count: int, n: int) -> list[dict[str, Any]]:
    return [{"prompt": text, "n": n, "id": f"g{i}"} for i, text in enumerate(texts(count))]


async def test_a_rollout_through_http_has_the_tokens_of_a_run_with_its_seed(rig: Rig) -> None:
    prompts, sampling = lines_of_prompts(6, n=3), {"max_response_len": 150}
    expected = await rig.undivided(prompts, sampling=sampling)
    serving = Rollout(rig.fleet() | FREE_PORT, gives_up=False)
    async with served_config(serving) as it:
        async with rollout(it, prompts, seed=SEED, sampling=sampling) as stream:
            lines = await stream.rest()
        assert it.service.generation.in_progress == 0
    found = [sample for samples in groups_of(lines).values() for sample in samples]
    assert_same_samples(lines_of(expected), found)
    assert lines[-1]["state"] == "complete"
    assert all(sample["text"] for sample in found)


async def test_the_example_of_a_client_filters_groups(rig: Rig, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, lines_of_prompts(6, n=3))))
    config = rig.fleet(sampling={"max_response_len": 100}) | FREE_PORT
    async with served_config(Rollout(config, gives_up=False)) as it:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.rollout_client", it.url),
            *("--prompts", str(prompts), "--target", "2"),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await program.communicate()
    *verdicts, end = output.decode().splitlines()
    assert program.returncode == 0
    assert verdicts
    assert all(line.endswith((" 200", " 409")) for line in verdicts)
    assert end.startswith(("target: 2 groups", "exhausted: "))
