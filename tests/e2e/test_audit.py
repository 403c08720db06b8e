"""`seer-sgl audit` on real engines: of unchanged, changed and older samples."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional

from bench.reasoner.batches import graded
from bench.reasoner.updates import update
from seer_sgl import Rollout
from seer_sgl.rollout.samples import SampleWriter
from tests.e2e.calls import post
from tests.e2e.conftest import (
    HELD_OUT,
    MODEL,
    ROOT,
    SEER_SGL,
    SERVER_FLAGS,
    external,
    servers,
    two_urls,
)
from tests.e2e.moe import moe_model, moe_prompts

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

Lines = list[dict[str, Any]]
PROMPTS, N, LONGEST = 4, 4, 300
HALF = [*SERVER_FLAGS[:2], "--dtype", "bfloat16", *SERVER_FLAGS[4:8], "--skip-server-warmup"]


class Audited(NamedTuple):
    """How an audit ended, and its audit.json."""

    status: int
    report: dict[str, Any]
    output: str

    @property
    def passes(self) -> dict[str, dict[str, Any]]:
        return {figures["name"]: figures for figures in self.report["passes"]}

    @property
    def findings(self) -> str:
        return "\n".join(self.report["findings"])


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The URLs of a deterministic engine in float32, and of one in bfloat16 without determinism."""
    urls, logs = two_urls(), tmp_path_factory.mktemp("audit")
    with servers(urls, [SERVER_FLAGS, HALF], logs):
        yield urls


async def rolled_out(
    url: str, folder: Path, prompts: Lines | None = None, model: Path = MODEL, **sampling: Any
) -> Lines:
    """Writes samples.jsonl and report.json of a divided rollout; returns its lines."""
    sampling = {"max_response_len": LONGEST, **sampling}
    config = external([url], sampling=sampling, rollout={"n_samples_per_prompt": N})
    config["model"]["path"] = str(model)
    writer = SampleWriter(folder / "samples.jsonl")
    async with Rollout(config) as rollout:
        asked = prompts or rollout.read_prompts(HELD_OUT)[:PROMPTS]
        async for _ in rollout.run(asked, [writer]):
            pass
        (folder / "report.json").write_text(json.dumps(rollout.report()))
    writer.close()
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


@pytest.fixture
def experts(tmp_path: Path) -> Iterator[str]:
    """The URL of an engine in bfloat16 without determinism, with a mixture of experts whose output
    is chaotic."""
    rows, weight = torch.randn(2, 32, 64, dtype=torch.bfloat16)
    if torch.equal(functional.linear(rows[:1], weight), functional.linear(rows, weight)[:1]):
        pytest.skip("on this CPU a row in bfloat16 does not depend on the others of its batch")
    (url,) = two_urls()[:1]
    with servers([url], [["--model-path", str(moe_model(tmp_path)), *HALF[2:]]], tmp_path):
        yield url


def audit(url: str, folder: Path, lines: Lines, *options: str) -> Audited:
    """Runs the command on samples, with its options."""
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [*SEER_SGL, "audit", str(path), "--engine", url, "--out", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode in (0, 1), output
    return Audited(done.returncode, json.loads((folder / "audit.json").read_text()), output)


def load_weights(url: str, path: Path, version: str) -> None:
    fields = {"model_path": str(path), "weight_version": version}
    assert post(f"{url}/update_weights_from_disk", **fields)["success"]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
async def test_own_samples_are_computed_again_to_the_token(
    engines: list[str], tmp_path: Path, temperature: float
) -> None:
    lines = await rolled_out(engines[0], tmp_path, temperature=temperature)
    assert max(line["chunks"] for line in lines) > 2
    limits = ("--fail", "changed=0", "--fail", "max=1e-4", "--fail", "versions=0")
    found = audit(engines[0], tmp_path, lines, "--set", f"temperature={temperature}", *limits)
    assert found.status == 0, found.output
    assert len(found.passes) == 6
    for name, figures in found.passes.items():
        assert figures["samples"] == PROMPTS * N
        assert figures["log_probs"]["tokens"] == figures["tokens"]
        assert ("warm" in name) == (figures["cached_tokens"] > 0)
    assert found.report["weights"]["same_digest"] is True
    assert found.findings.startswith("no differences beyond rounding")
    assert set(found.report["parts"]["chunk"]) == {
        "first chunk",
        "later chunks: first token",
        "later chunks: other tokens",
    }


def trained(lines: Lines, folder: Path) -> Path:
    """Writes the reasoner after one optimizer step of GRPO on samples."""
    assert update(MODEL, list(map(graded, lines)), 1, folder) > 0
    return folder


async def test_weights_of_a_training_step_before_are_named(
    engines: list[str], tmp_path: Path
) -> None:
    lines = await rolled_out(engines[0], tmp_path)
    load_weights(engines[0], trained(lines, tmp_path / "trained"), "step-2")
    try:
        found = audit(engines[0], tmp_path, lines, "--fail", "versions=0")
    finally:
        load_weights(engines[0], MODEL, "default")
    assert found.status == 1
    assert found.report["weights"]["same_digest"] is False
    assert found.findings.startswith("other weights: 16 of 16 samples")
    assert "spread over the tokens" in found.findings
    assert audit(engines[0], tmp_path, lines, "--flush").findings.startswith("no differences")


async def test_half_precision_is_told_from_a_wrong_record(
    engines: list[str], tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "half").mkdir()
    full = await rolled_out(engines[0], tmp_path / "full")
    half = await rolled_out(engines[1], tmp_path / "half")

    other_dtype = audit(engines[1], tmp_path / "full", full)
    assert "in another dtype (the server's is bfloat16)" in other_dtype.findings
    assert other_dtype.report["not_generated"], "SGLang ignores their seeds"
    assert other_dtype.passes["prefill, alone"]["log_probs"]["max"] > 1e-3

    same_dtype = audit(engines[1], tmp_path / "half", half)
    assert same_dtype.findings.startswith("no differences beyond rounding")
    assert "prefill and decode steps round differently" in same_dtype.findings
    half[0]["rollout_log_probs"][20] -= 2.0
    altered = audit(engines[1], tmp_path / "half", half)
    assert altered.findings.startswith("single log probabilities: 1 of ")


async def test_answers_that_depend_on_the_batch_are_named(experts: str, tmp_path: Path) -> None:
    lines = await rolled_out(
        experts,
        tmp_path,
        moe_prompts(8),
        tmp_path / "qwen3-moe",
        max_response_len=200,
        temperature=0.0,
        ignore_eos=True,
    )
    found = audit(experts, tmp_path, lines, "--set", "temperature=0", "--fail", "changed=0")
    assert found.status == 1
    assert "the server's own answers depend on the batch" in found.findings
