"""Sampled workloads match their configured figures; traces are read unchanged."""

import json
from pathlib import Path

import numpy as np
import pytest

from seer_sgl.errors import ConfigError
from seer_sgl.sim.config import LengthsConfig
from seer_sgl.sim.opening import facts
from seer_sgl.sim.source import load_settings, workload_file
from seer_sgl.sim.workload import draw, sample
from seer_sgl.traces.reading import read_trace

PUBLISHED = {  # requests, groups, mean, max, engines (paper, workloads)
    "moonlight": (3200, 400, 22386, 65536, 32),
    "qwen2-vl-72b": (9600, 600, 7615, 40960, 16),
    "kimi-k2": (6400, 800, 38959, 98304, 8),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_workload_has_the_published_figures(name: str) -> None:
    requests, groups, mean, longest, engines = PUBLISHED[name]
    config = load_settings(workload_file(name))
    drawn = sample(config.workload)
    lengths = [length for group in drawn for length in group.lengths]
    assert (len(lengths), len(drawn), config.engine.count) == (requests, groups, engines)
    assert np.mean(lengths) == pytest.approx(mean, rel=0.001)
    assert max(lengths) == longest
    assert min(lengths) >= 1


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_group_share_is_the_share_of_variance_between_groups(share: float) -> None:
    config = LengthsConfig(mean=1000, max=1_000_000, sigma=0.8, group_share=share)
    logs = np.log(draw(config, 3000, 8))
    within = logs.var(axis=1, ddof=1).mean()
    between = logs.mean(axis=1).var(ddof=1) - within / 8
    assert logs.std() == pytest.approx(0.8, rel=0.05)
    assert between / (between + within) == pytest.approx(share, abs=0.05)


def test_an_epoch_later_prompts_are_the_same_and_responses_are_not() -> None:
    config = LengthsConfig(mean=1000, max=100_000, sigma=0.8, group_share=0.8)
    first, again, later = draw(config, 500, 8), draw(config, 500, 8), draw(config, 500, 8, epoch=1)
    assert (first == again).all()
    assert (first == later).mean() < 0.05
    means = np.log(first).mean(axis=1), np.log(later).mean(axis=1)
    assert np.corrcoef(*means)[0, 1] > 0.9


def test_a_trace_is_read_as_rollout_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    lines: list[dict[str, object]] = [
        {"group_id": "a", "index": 1, "response_length": 30, "prompt_ids": [7, 8, 9], "seed": 4},
        {"group_id": "b", "index": 0, "response_length": 5, "prompt_ids": [7]},
        {"group_id": "a", "index": 0, "response_length": 20, "prompt_ids": [7, 8, 9]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    groups = read_trace(path).groups
    assert [(g.group_id, list(g.prompt_ids), g.lengths) for g in groups] == [
        ("a", [7, 8, 9], [20, 30]),
        ("b", [7], [5]),
    ]
    workload = load_settings(known=facts(groups)).workload
    assert (workload.groups, workload.n_samples_per_prompt, workload.prompt_tokens) == (2, 2, 3)
    assert workload.lengths.mean == pytest.approx(55 / 3)
    assert workload.lengths.max == 30


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("engine.experts_per_token=130", "engine.experts_per_token: 130 of 64"),
        ("engine.overhead_ms=4e6", "engine: a step of one sequence takes 4000.*s, not 1e-09 to 36"),
        ("engine.bandwidth_gb_s=1e-308", "engine: a step of one sequence takes inf s"),
        ("engine.tflops=1e-300", "engine: a step of one sequence takes .* s, not"),
        ("engine.prefill_tok_s=1e-308", "engine: a prefill takes inf s"),
        ("engine.kv_bytes_per_token=1e308", "engine.kv_bytes_per_token: expected float <= 1"),
        ("workload.lengths.sigma=1e5", "workload.lengths.sigma: expected float <= 20"),
        ("pool.store_ms=1e308", "pool.store_ms: expected float <= 1"),
    ],
)
def test_what_would_be_simulated_for_ever_is_refused(override: str, complaint: str) -> None:
    settings = (workload_file("moonlight"),)
    with pytest.raises(ConfigError, match=complaint):
        load_settings(*settings, overrides=["engine.experts=64", override])
