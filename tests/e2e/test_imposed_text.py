"""Random weights with an imposed text, on real SGLang servers: drafts are accepted as with the
recorded siblings, and plain and drafting engines give out the same text."""

from pathlib import Path
from typing import Any

import pytest

from bench.draft_streams import recorded
from bench.gpu import imposed
from bench.gpu.text import compose, response
from seer_sgl.rollout.rollout import Rollout
from tests.e2e.compare import roll
from tests.e2e.conftest import HELD_OUT, MODEL, SGLANG

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

GROUPS, SIBLINGS, TOKENS, SEED = 2, 6, 200, 1
FLAGS = {
    **SGLANG,
    "load-format": "dummy",
    "max-total-tokens": 8192,
    "max-running-requests": 8,
}


def config(draft: dict[str, str], environment: dict[str, str]) -> dict[str, Any]:
    return {
        "model": {"path": str(MODEL)},
        "engines": {"launch": "local", "sglang": FLAGS, "environment": environment},
        "draft": draft,
        "sampling": {"temperature": 0.8, "max_response_len": TOKENS, "ignore_eos": True},
        "rollout": {"n_samples_per_prompt": SIBLINGS, "seed": SEED},
    }


async def responses_of(
    chosen: dict[str, Any], logs: Path
) -> tuple[dict[tuple[str, int], list[int]], Any]:
    """Returns the responses by group and index, and the report."""
    samples, report = await roll(chosen, GROUPS, log_dir=logs)
    return {key: list(sample.response_ids) for key, sample in samples.items()}, report


async def test_drafts_are_accepted_as_with_the_siblings_of_the_text(tmp_path: Path) -> None:
    drafting, plain = {"scope": "engine"}, dict[str, str]()
    reader = Rollout(config(plain, {}))
    prompts = reader.read_prompts(HELD_OUT)[:GROUPS]
    lengths = {prompt.prompt_id: [TOKENS] * SIBLINGS for prompt in prompts}
    (prompt_tokens,) = {len(prompt.prompt_ids) for prompt in prompts}
    compose(recorded(), lengths, prompt_tokens, [SEED]).save(tmp_path / "text.npz")
    imposed.write_plugin(tmp_path / "plugin")
    variables = imposed.environment(tmp_path / "plugin", tmp_path / "text.npz")
    expected = {
        (prompt.prompt_id, index): response(recorded(), group, index, TOKENS).tolist()
        for group, prompt in enumerate(prompts)
        for index in range(SIBLINGS)
    }
    noise, report = await responses_of(config(drafting, {}), tmp_path / "noise")
    assert all(noise[key] != expected[key] for key in expected)
    assert report["accept_length"] < 1.2
    drafted, report = await responses_of(config(drafting, variables), tmp_path / "drafting")
    assert drafted == expected
    assert report["accept_length"] > 1.5
    whole, _ = await responses_of(config(plain, variables), tmp_path / "plain")
    assert whole == expected
