"""The shipped model, sampled through SGLang, meets its acceptance criteria."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.reasoner.evaluate import failed_criteria, measure, read
from seer_sgl import Rollout
from seer_sgl.rollout.samples import SampleWriter
from tests.e2e.conftest import HELD_OUT, external
from tests.e2e.held_out import texts
from tests.e2e.rig import Rig

pytestmark = pytest.mark.shared_engines


@pytest.mark.long
async def test_held_out_responses_are_long_tailed_correlated_right_and_different(
    rig: Rig, tmp_path: Path
) -> None:
    config = rig.fleet(
        scheduling={"chunk_tokens": 256},
        sampling={"max_response_len": 8000},
        rollout={"max_prompts": 64},
    )
    path = tmp_path / "samples.jsonl"
    async with Rollout(config) as rollout:
        writer = SampleWriter(path)
        async for group in rollout.run(rollout.read_prompts(HELD_OUT), [writer]):
            assert len(group.samples) == 8
        writer.close()
        report = rollout.report()
    facts = measure(read(path.read_text().splitlines()))
    assert failed_criteria(facts) == [], msgspec.json.encode(facts)
    assert facts["samples"] == report["samples"] == 512
    assert report["retractions"] == 0


async def test_chat_messages_and_token_ids_give_the_samples_of_the_text(
    engine_urls: list[str],
) -> None:
    (text,) = texts(1)
    question = text.removeprefix("<bos> ").removesuffix(" <think>")
    config = external(engine_urls, sampling={"max_response_len": 100}, rollout={"seed": 5})
    prompts: list[dict[str, Any]] = [
        {"prompt": text},
        {"messages": [{"role": "user", "content": question}]},
        {"prompt_ids": list(Rollout(config).read_prompts(HELD_OUT)[0].prompt_ids)},
    ]
    ways = []
    for prompt in prompts:
        async with Rollout(config) as rollout:  # a new one: a second run would draw other seeds
            (group,) = [g async for g in rollout.run([prompt | {"id": "same", "n": 4}])]
            ways.append([list(sample.response_ids) for sample in group.samples])
    assert ways[0] == ways[1] == ways[2]
