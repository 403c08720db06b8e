"""The summary of rollouts."""

import msgspec
import pytest

from seer_sgl.benchmark.summary import KNOWN, by_seed, doubts, ratios, summarize
from seer_sgl.benchmark.tables import markdown
from tests.support.rows import row


def test_ratios_compare_rollouts_of_the_same_round_whatever_their_seeds() -> None:
    rows = [
        row("group_round_robin", 0, throughput_tok_s=100.0, tail_s=10.0),
        row("seer", 0, throughput_tok_s=300.0, tail_s=1.0),
        row("group_round_robin", 1, seed=2, throughput_tok_s=50.0, tail_s=8.0),
        row("seer", 1, seed=2, throughput_tok_s=100.0, tail_s=2.0),
    ]
    seer = summarize(rows)["seer"]
    assert seer["speedup"] == 2.5
    assert seer["range"]["speedup"] == [2.0, 3.0]
    assert seer["tail_cut"] == pytest.approx((0.9 + 0.75) / 2)
    assert seer["throughput_tok_s"] == 200.0


def test_the_share_of_a_technique_is_against_the_arm_it_is_added_to() -> None:
    rows = [
        row("group_round_robin", 0, throughput_tok_s=50.0),
        row("kv_pool", 0, throughput_tok_s=80.0),
        row("context", 0, throughput_tok_s=100.0),
    ]
    context = summarize(rows)["context"]
    assert (context["gain"], context["speedup"]) == (1.25, 2.0)


def test_greedy_arms_are_compared_with_their_own_baseline() -> None:
    rows = [
        row("group_round_robin", 0, throughput_tok_s=50.0),
        row("greedy", 0, throughput_tok_s=100.0),
        row("greedy_seer", 0, throughput_tok_s=150.0),
    ]
    assert summarize(rows)["greedy_seer"]["speedup"] == 1.5


def test_the_worst_share_of_identical_samples_counts() -> None:
    rows = [row("seer", 0), row("seer", 1, identical_share=0.5), row("seer", 2)]
    assert summarize(rows)["seer"]["identical_share"] == 0.5


def test_an_arm_without_its_baseline_has_no_ratio() -> None:
    seer = summarize([row("seer", 0)])["seer"]
    assert seer["speedup"] is None
    assert "speedup" not in seer["range"]


def test_idle_time_of_each_engine() -> None:
    rows = [row("seer", 0, idle=[0.0, 0.2]), row("seer", 1, idle=[0.4, 0.1])]
    report = summarize(rows)["seer"]
    assert report["idle_by_engine"] == [0.3, 0.05], (
        "the most idle engine of each rollout comes first"
    )
    assert report["idle_share"] == pytest.approx((0.1 + 0.25) / 2)
    unknown = summarize([row("seer", 0, idle=None)])["seer"]
    assert (unknown["idle_by_engine"], unknown["idle_share"]) == ([], None)


def test_other_samples_than_the_references_are_told_first() -> None:
    same, other = row("seer", 0), row("divided", 0, identical_share=0.5)
    assert doubts([same], KNOWN, imposed=False) == doubts([other], KNOWN, imposed=True) == []
    (doubt,) = doubts([same, other], KNOWN, imposed=False)
    assert doubt.startswith("divided: only 50.0% of the samples")


def test_ratios_by_round() -> None:
    rows = [
        row("seer", 0, throughput_tok_s=100.0, accept_length=2.0),
        row("seer", 1, throughput_tok_s=100.0, accept_length=3.0),
        row("seer", 2, throughput_tok_s=100.0),
        row("context", 2, throughput_tok_s=0.0, accept_length=1.0),
        row("context", 1, throughput_tok_s=80.0, accept_length=1.5),
    ]
    assert ratios(rows, "seer", "context") == {1: 1.25}, "round 0 has no divisor, round 2 a zero"
    assert ratios(rows, "seer", "context", "accept_length") == {1: 2.0}
    assert ratios(rows, "seer", "oracle") == {}


def test_whole_requests_have_no_continuations_to_recompute() -> None:
    report = summarize([row("group_round_robin", 0), row("divided", 0, recomputed_tokens=7)])
    assert report["group_round_robin"]["recomputed_tokens"] is None
    assert report["divided"]["recomputed_tokens"] == 7


def test_every_seed_alone() -> None:
    rows = [
        row("group_round_robin", 0, seed=3),
        row("seer", 0, seed=3, throughput_tok_s=160.0),
        row("group_round_robin", 1, seed=2),
        row("seer", 1, seed=2, throughput_tok_s=80.0),
    ]
    seeds = by_seed(rows)
    assert list(seeds) == ["2", "3"]
    assert [seeds[seed]["seer"]["speedup"] for seed in seeds] == [1.0, 2.0]


def test_the_page_has_every_arm_and_the_papers_figures() -> None:
    rows = [row("group_round_robin", 0), row("seer", 0, throughput_tok_s=168.0, accept_length=2.5)]
    config = {
        "bench": {"workload": None, "rounds": 6, "seeds": [1, 2]},
        "rollout": {"prompts": "p.jsonl", "max_prompts": 4, "n_samples_per_prompt": 2},
        "sampling": {"temperature": 1.0, "max_new_tokens": 100},
        "engines": {"launch": "local", "count": 2, "sglang": {}},
    }
    report = {
        "arms": summarize(rows),
        "seeds": by_seed(rows),
        "rounds": msgspec.to_builtins(rows),
        "doubts": [],
        "failures": [{"arm": "oracle", "round": 1, "error": "it broke\n# a log"}],
        "config": config,
        "environment": {
            "date": "2026-11-21",
            "machine": "Linux",
            "cpu": "a CPU",
            "commit": None,
            "cores": 2,
            "memory_gb": 24,
            "gpus": [],
            "python": "3.11",
            "packages": {"sglang": "0.5.21", "torch": None},
        },
    }
    page = markdown(report)
    assert f"1 rounds, seeds [{rows[0].seed}] in turn." in page, "those that were measured"
    assert "- `oracle` failed in round 1, later rounds skip it: it broke\n" in page
    assert "a log" not in page
    assert "| seer | 1 | 168 (168 to 168) | 2.10 (2.10 to 2.10) | 2.04 |" in page
    assert "| group_round_robin | 1 | 80 (80 to 80) | 1.00 (1.00 to 1.00) | 1.00 |" in page
    assert "no GPU" in page
    assert "their median is taken over all rounds" in page
    assert "torch" not in page
    assert "\n4 prompts x 2 of `p.jsonl`, " in page
    traced = config | {"bench": {"workload": "trace.jsonl"}}
    page = markdown(report | {"config": traced})
    assert "\n4 prompts of `trace.jsonl`, " in page, "a trace has its own groups"
