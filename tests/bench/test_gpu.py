"""The parts of the GPU benchmark that need no GPU: inputs, config, first checks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import shapes
from seer_sgl.benchmark.arms import EVERY
from seer_sgl.benchmark.config import BenchConfig, load_bench
from seer_sgl.benchmark.derive import arm_config, servers_config
from seer_sgl.benchmark.workloads import Source
from seer_sgl.config import LocalEngines
from seer_sgl.rollout import Rollout
from seer_sgl.traces.reading import read_trace

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench" / "gpu" / "run.sh"
CONFIG = ROOT / "configs" / "bench-gpu.yaml"
BASH = shutil.which("bash") or "/bin/bash"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    command = [sys.executable, "-m", "bench.gpu.shapes", "--out", str(folder)]
    facts = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    assert facts["model"] == str(folder / "model")
    assert facts["samples"] == 512
    return folder


@pytest.fixture(scope="module")
def config(inputs: Path) -> BenchConfig:
    where = {"model.path": inputs / "model", "bench.workload": inputs / "trace.jsonl"}
    return load_bench(CONFIG, [f"{key}={path}" for key, path in where.items()])


@pytest.mark.parametrize(("size", "billions"), [("1.5b", 1.544), ("7b", 7.616), ("tiny", 0.000189)])
def test_a_model_of_the_size_that_is_claimed(tmp_path: Path, size: str, billions: float) -> None:
    from transformers import AutoConfig

    shapes.write_model(tmp_path, size)
    read = AutoConfig.from_pretrained(tmp_path)
    assert read.model_type == "qwen2"
    assert str(read.dtype).endswith("bfloat16")
    assert read.eos_token_id < read.vocab_size
    assert shapes.parameters(read.to_dict()) == pytest.approx(billions * 1e9, rel=0.001)


def test_the_trace_has_the_lengths_that_are_claimed(inputs: Path) -> None:
    groups = read_trace(inputs / "trace.jsonl").groups
    lengths = [length for group in groups for length in group.lengths]
    assert (len(groups), len(lengths)) == (32, 512)
    assert sum(lengths) / len(lengths) == pytest.approx(1500, rel=0.01)
    assert max(lengths) == 8192
    assert sorted(lengths)[len(lengths) // 2] < 1200  # a heavy tail
    assert len({tuple(group.prompt_ids[:8]) for group in groups}) == 32
    assert all(len(group.prompt_ids) == 512 for group in groups)


def test_every_arm_can_be_set_up_with_a_model_without_a_tokenizer(config: BenchConfig) -> None:
    work = Source(config).draw(seed=1)
    trace = Path(config.bench.workload or "")
    prompts = trace.with_name("prompts.jsonl")
    lines = [json.loads(line)["prompt_ids"] for line in trace.read_text().splitlines()]
    prompts.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in lines))
    for name in config.bench.arms:
        arm = arm_config(EVERY[name], config, 1, config.bench.workload)
        servers_config(EVERY[name], config)
        assert len(Rollout(arm).read_prompts(prompts)) == len(work.prompts)


def test_the_engines_hold_the_longest_request_and_not_all_of_them(config: BenchConfig) -> None:
    groups = read_trace(Path(config.bench.workload or "")).groups
    flags = config.engines.sglang
    longest = max(len(group.prompt_ids) + max(group.lengths) for group in groups)
    room = flags["context-length"]
    assert isinstance(room, int)
    assert longest < room - 8  # SGLang keeps some of it
    every = sum(sum(group.lengths) for group in groups)
    assert isinstance(config.engines, LocalEngines)
    assert longest < int(str(flags["max-total-tokens"])) < every / config.engines.count / 2
    assert config.sampling.ignore_eos
    assert max(max(group.lengths) for group in groups) <= config.sampling.max_new_tokens


def test_the_script_is_bash() -> None:
    subprocess.run([BASH, "-n", str(SCRIPT)], check=True)
    assert os.access(SCRIPT, os.X_OK)


def test_without_a_gpu_the_script_says_so_in_one_line(tmp_path: Path) -> None:
    for tool in ("dirname", "mkdir"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    ended = subprocess.run(
        [BASH, str(SCRIPT), "--out", str(tmp_path / "out")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "nvidia-smi" in ended.stderr
