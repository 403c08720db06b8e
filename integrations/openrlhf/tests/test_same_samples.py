"""The samples of the fleet are those of plain SGLang: divided, drafted and moved, or pinned."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openrlhf.utils.agent import SingleTurnAgentExecutor
from reasoner import grpo, prompts
from seer_openrlhf.client import Server
from seer_openrlhf.flags import SeerFlags
from seer_openrlhf.front import Front
from seer_openrlhf.served import served
from transformers import AutoTokenizer
from vllm import SamplingParams

STEPS, PROMPTS, SAMPLES, TOKENS = 2, 16, 8, 2048
READY_S = 600.0
CONFIGS = {"divided": grpo.HERE / "engines.yaml", "pinned": grpo.HERE / "pinned.yaml"}
Json = dict[str, Any]


def rows(path: Path) -> list[Json]:
    prompts.write(grpo.PROMPTS / "train.jsonl", path, STEPS * PROMPTS, most_steps=60)
    return [json.loads(line) for line in path.read_text().splitlines()]


async def rolled_out(url: str, batches: list[list[Json]]) -> tuple[list[list[Json]], list[Json]]:
    """Returns the responses to every prompt, and the server's report of every batch."""
    server = Server(url, token=None, admin_token=None, timeout_s=READY_S)
    front = Front(server, SingleTurnAgentExecutor(str(grpo.REWARD)))
    tokenizer = AutoTokenizer.from_pretrained(str(grpo.MODEL))
    params = SamplingParams(
        temperature=1.0, top_p=1.0, top_k=-1, max_tokens=None, min_tokens=1, logprobs=1
    )
    responses, reports = [], []
    for number, batch in enumerate(batches):
        await front.open_batch(f"batch-{number}", seed=number)
        front.expect(len(batch))
        calls = (
            front.generate_responses(
                row["input"],
                row["label"],
                params,
                TOKENS,
                tokenizer,
                num_samples=SAMPLES,
                place=place,
            )
            for place, row in enumerate(batch)
        )
        responses += await asyncio.gather(*calls)
        reports.append((await server.get(f"/rollout/batch-{number}.1"))["report"])
        front.close_batch()
    await server.close()
    return responses, reports


@pytest.mark.engines
@pytest.mark.long
def test_divided_and_pinned_samples_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rows(tmp_path / "prompts.jsonl")
    batches = [found[start : start + PROMPTS] for start in range(0, len(found), PROMPTS)]
    monkeypatch.chdir(grpo.ROOT)
    arms: dict[str, list[Json]] = {"divided": [], "pinned": []}  # the reports of their batches
    first: list[list[Json]] = []
    for name in ("divided", "pinned", "pinned", "divided"):  # a slower machine slows both arms
        responses, reports = under(in_float32(CONFIGS[name], tmp_path), batches)
        first = first or responses
        for ours, plain in zip(first, responses, strict=True):
            assert [each["observation_tokens"] for each in ours] == [
                each["observation_tokens"] for each in plain
            ]
            assert [each["reward"] for each in ours] == [each["reward"] for each in plain]
        arms[name] += reports
    for report in arms["divided"]:
        assert report["migrations"] and report["accept_length"] > 1  # tokens per step
    for report in arms["pinned"]:
        assert not report["migrations"] and report["accept_length"] in (None, 1.0)
    for name, reports in arms.items():  # shown by pytest -s
        print(name, *(f"{report['wall_s']:.1f} s" for report in reports))


def under(config: Path, batches: list[list[Json]]) -> tuple[list[list[Json]], list[Json]]:
    """Returns what the batches give with a server of this config."""
    seer = str(grpo.ROOT / ".venv/bin/seer-sgl")
    with served(SeerFlags(config=str(config), command=seer, timeout_s=READY_S)) as url:
        return asyncio.run(rolled_out(url, batches))


def in_float32(config: Path, folder: Path) -> Path:
    """Returns a copy of a config, with short chunks, which move more.

    In bf16, SGLang's results on a CPU depend on the batch.
    """
    path = folder / config.name
    text = config.read_text().replace("dtype: bfloat16", "dtype: float32")
    path.write_text(text.replace("chunk_tokens: 256", "chunk_tokens: 64"))
    return path
