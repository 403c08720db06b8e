"""The figures of a simulated rollout."""

import statistics
from typing import Any

import msgspec

from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `simulate --json`, in seconds and tokens. `idle_fraction`: the share of all
    engines' time without a request. Ratios are of throughput, None if the other was not run.
    `share_of_bound`: the lower bound of the time (bound.py) as a share of `wall_s`; None with
    drafts, for which there is no bound. `pool_peak_gb`: the most KV in the pool at once."""

    workload: str
    policy: str
    wall_s: float
    tail_s: float
    throughput_tok_s: float
    idle_fraction: float
    preemptions: int
    migrations: int
    accept_length: float | None
    ratio_to_baseline: float | None = None
    ratio_to_oracle: float | None = None
    share_of_bound: float | None = None
    pool_peak_gb: float | None = None


def tail_cut(row: Outcome, baseline: Outcome) -> float:
    """Returns the share of the baseline's tail that a policy cuts."""
    return 1 - row.tail_s / baseline.tail_s if baseline.tail_s else 0.0


def outcome(
    workload: str, policy: str, record: Recorder, *, pool_peak_gb: float | None = None
) -> Outcome:
    """Returns the figures of one run, by the definitions of the real report."""
    figures: dict[str, Any] = report(record)
    return Outcome(
        workload=workload,
        policy=policy,
        wall_s=figures["wall_s"],
        tail_s=figures["tail_s"],
        throughput_tok_s=figures["throughput_tok_s"],
        idle_fraction=round(statistics.mean(e["idle_share"] for e in figures["engines"]), 4),
        preemptions=figures["retractions"],
        migrations=figures["migrations"],
        accept_length=figures["accept_length"],
        pool_peak_gb=pool_peak_gb,
    )
