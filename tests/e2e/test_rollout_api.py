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

from .compare import LOGPROB_TOLERANCE
from .conftest import HELD_OUT, ROOT
from .rig import Rig

pytestmark = pytest.mark.shared_engines

SEED = 11  # of `external`
FREE_PORT = {"server": {"port": 0}}
Tokens = dict[tuple[str, int], tuple[list[int], list[float]]]


def lines_of_prompts(count: int, n: int) -> list[dict[str, Any]]:
    lines = HELD_OUT.read_text().splitlines()[:count]
    return [
        {"prompt": json.loads(line)["prompt"], "n": n, "id": f"g{i}"}
        for i, line in enumerate(lines)
    ]


async def calm(rig: Rig, prompts: list[dict[str, Any]], limit: int) -> Tokens:
    """Returns the tokens and logprobs of an undivided run."""
    samples = await rig.undivided(prompts, sampling={"max_response_len": limit})
    return {
        key: (list(sample.response_ids), list(sample.rollout_log_probs))
        for key, sample in samples.items()
    }


def tokens_of(lines: list[dict[str, Any]]) -> Tokens:
    """Returns the tokens and logprobs of a stream's groups."""
    return {
        (name, sample["index"]): (sample["response_ids"], sample["rollout_log_probs"])
        for name, samples in groups_of(lines).items()
        for sample in samples
    }


def assert_equal(found: Tokens, expected: Tokens) -> None:
    """Asserts that the samples are the same, with the same tokens and nearly equal logprobs."""
    assert found.keys() == expected.keys()
    for key, (ids, logprobs) in expected.items():
        assert found[key][0] == ids
        assert found[key][1] == pytest.approx(logprobs, abs=LOGPROB_TOLERANCE)


async def test_a_rollout_through_http_has_the_tokens_of_a_run_with_its_seed(rig: Rig) -> None:
    prompts = lines_of_prompts(6, n=3)
    expected = await calm(rig, prompts, limit=150)
    serving = Rollout(rig.fleet() | FREE_PORT, gives_up=False)
    async with served_config(serving) as it:
        options = {"seed": SEED, "sampling": {"max_response_len": 150}}
        async with rollout(it, prompts, **options) as stream:
            lines = await stream.rest()
        assert it.service.generation.in_progress == 0
    assert_equal(tokens_of(lines), expected)
    assert lines[-1]["state"] == "complete"
    texts = [sample["text"] for samples in groups_of(lines).values() for sample in samples]
    assert all(texts)


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
