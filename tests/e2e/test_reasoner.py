"""The shipped model, sampled through SGLang, meets its acceptance criteria."""

from pathlib import Path

import msgspec
import pytest

from bench.reasoner.evaluate import failed_criteria, measure, read
from seer_sgl import Rollout
from seer_sgl.rollout.samples import SampleWriter
from tests.e2e.conftest import HELD_OUT
from tests.e2e.held_out import texts, tokenizer
from tests.e2e.rig import Rig


@pytest.mark.shared_engines
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


@pytest.mark.process
def test_chat_messages_are_the_tokens_of_the_text() -> None:
    (text,) = texts(1)
    question = text.removeprefix("<bos> ").removesuffix(" <think>")
    reader = tokenizer()
    chat = [{"role": "user", "content": question}]
    assert reader.apply_chat_template(chat) == reader.encode(text)
