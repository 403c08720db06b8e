"""The workload of a seed."""

import json
from pathlib import Path

import pytest

from seer_sgl.benchmark.config import BenchConfig, load_ready_bench
from seer_sgl.benchmark.workloads import Source
from seer_sgl.errors import ConfigError
from tests.helpers import make_group


def config(*overrides: str) -> BenchConfig:
    return load_ready_bench(gpu=False, overrides=overrides)


def imposing(trace: Path, *overrides: str) -> BenchConfig:
    return config(f"bench.workload={trace}", "sampling.ignore_eos=true", *overrides)


def test_a_seed_draws_the_same_prompts_every_time() -> None:
    source = Source(config())
    one, again, other = source.draw(6), source.draw(6), source.draw(12)
    ids = [[prompt.prompt_id for prompt in work.prompts] for work in (one, again, other)]
    assert ids[0] == ids[1] != ids[2]
    assert len(ids[0]) == 8
    assert all(prompt.n == 16 for prompt in one.prompts)


def test_greedy_decoding_has_one_response_a_prompt() -> None:
    prompts = Source(config()).draw_single(6).prompts
    assert len(prompts) == 64
    assert all(prompt.n == 1 for prompt in prompts)


def test_a_trace_brings_its_prompts_and_imposes_its_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "samples.jsonl"
    lines = [
        {"group_id": "a", "prompt_ids": [0, 1], "index": index, "response_length": length}
        for index, length in enumerate([10, 300])
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    work = Source(imposing(trace)).draw(1)
    (prompt,) = work.prompts
    assert (list(prompt.prompt_ids), prompt.n) == ([0, 1], 2)
    assert work.limits is not None
    assert list(work.limits.of(make_group("a", prompt_len=2)).values()) == [10, 300]


@pytest.mark.parametrize("prompt", ['"group_id": "a"', '"prompt_ids": []'])
def test_a_trace_without_prompts_is_refused(tmp_path: Path, prompt: str) -> None:
    trace = tmp_path / "lengths.jsonl"
    trace.write_text(f'{{{prompt}, "lengths": [10, 20]}}\n')
    with pytest.raises(ConfigError, match=r"bench\.workload: .*:1: prompt_ids: missing"):
        Source(imposing(trace))


def test_a_response_that_would_be_cut_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "samples.jsonl"
    trace.write_text(
        '{"prompt_ids": [1], "lengths": [10, 6000]}\n{"prompt_ids": [2], "lengths": [9]}\n'
    )
    with pytest.raises(ConfigError) as error:
        Source(imposing(trace))
    assert str(error.value) == (
        f"sampling.max_response_len: 4000, but {trace} has a response of 6000 tokens"
    )
    assert Source(imposing(trace, "sampling.max_response_len=6000")).draw(1).limits is not None
