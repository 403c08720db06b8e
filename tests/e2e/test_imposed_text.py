"""Random weights with an imposed text, on real SGLang servers: drafts are accepted as with the
recorded siblings, and plain and drafting engines give out the same text."""

from pathlib import Path
from typing import Any

import pytest

from bench.draft_streams import recorded
from bench.gpu import imposed
from bench.gpu.text import compose, response
from seer_sgl.config import Config, parse
from seer_sgl.engine.fleet import open_fleet
from seer_sgl.rollout.rollout import Rollout
from tests.e2e.conftest import MODEL

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

GROUPS, SIBLINGS, TOKENS, SEED = 2, 6, 200, 1
FLAGS = {
    "dtype": "float32",
    "load-format": "dummy",
    "max-total-tokens": 8192,
    "max-running-requests": 8,
    "enable-deterministic-inference": True,
    "skip-server-warmup": True,
}
PROMPTS = MODEL.parent / "prompts" / "held_out.jsonl"


def config(draft: dict[str, str], environment: dict[str, str]) -> Config:
    tree: dict[str, Any] = {
        "model": {"path": str(MODEL)},
        "engines": {"launch": "local", "sglang": FLAGS, "environment": environment},
        "draft": draft,
        "sampling": {"temperature": 0.8, "max_response_len": TOKENS, "ignore_eos": True},
        "rollout": {"max_prompts": GROUPS, "n_samples_per_prompt": SIBLINGS, "seed": SEED},
    }
    return parse(tree)


async def rolled(
    chosen: Config, logs: Path
) -> tuple[dict[tuple[int, int], list[int]], dict[str, Any]]:
    """Returns the responses by group number and index, and the report."""
    async with open_fleet(chosen.fleet, logs) as fleet, Rollout(chosen, fleet=fleet) as rollout:
        prompts = rollout.read_prompts(PROMPTS)[:GROUPS]
        names = [prompt.prompt_id for prompt in prompts]
        groups = [group async for group in rollout.run(prompts)]
        report = rollout.report()
    responses = {
        (names.index(sample.group_id), sample.index): list(sample.response_ids)
        for group in groups
        for sample in group.samples
    }
    return responses, report


async def test_drafts_are_accepted_as_with_the_siblings_of_the_text(tmp_path: Path) -> None:
    drafting, plain = {"scope": "engine"}, dict[str, str]()
    reader = Rollout(config(plain, {}))
    prompts = reader.read_prompts(PROMPTS)[:GROUPS]
    lengths = {prompt.prompt_id: [TOKENS] * SIBLINGS for prompt in prompts}
    (prompt_tokens,) = {len(prompt.prompt_ids) for prompt in prompts}
    compose(recorded(), lengths, prompt_tokens, [SEED]).save(tmp_path / "text.npz")
    imposed.write_plugin(tmp_path / "plugin")
    variables = imposed.environment(tmp_path / "plugin", tmp_path / "text.npz")
    expected = {
        (group, index): response(recorded(), group, index, TOKENS).tolist()
        for group in range(GROUPS)
        for index in range(SIBLINGS)
    }
    noise, report = await rolled(config(drafting, {}), tmp_path / "noise")
    assert all(noise[key] != expected[key] for key in expected)
    assert report["accept_length"] < 1.2
    drafted, report = await rolled(config(drafting, variables), tmp_path / "drafting")
    assert drafted == expected
    assert report["accept_length"] > 1.5
    whole, _ = await rolled(config(plain, variables), tmp_path / "plain")
    assert whole == expected
