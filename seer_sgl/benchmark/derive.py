"""The configs of an arm: the benchmark's own with techniques left out. Pure."""

from typing import Any

import msgspec

from seer_sgl.config import Config, parse

from .arms import Arm
from .config import BenchConfig


def arm_config(arm: Arm, base: Config, seed: int, lengths: str | None) -> Config:
    """The config of a rollout of the arm. `lengths`: a file with the true ones, for the oracle."""
    tree = _tree(base)
    tree["scheduling"] |= {
        "policy": arm.policy,
        "lengths": lengths if arm.policy == "oracle" else None,
    }
    if arm.undivided:
        tree["scheduling"]["max_inflight_per_engine"] = None  # all are sent at once
    tree["rollout"] |= {"seed": seed, "max_prompts": None}
    if arm.greedy:
        tree["sampling"] |= {"temperature": 0.0}
    return parse(tree | _left_out(arm))


def servers_config(arm: Arm, base: BenchConfig) -> Config:
    """The config of the servers that the arm, and all others of its kind, run on."""
    tree = _tree(base) | _left_out(arm)
    engines = tree["engines"]
    if base.engines.launch == "external":
        engines["urls"] = base.bench.urls[arm.kind]
        if not arm.pool and not arm.drafts:
            engines["link"] = None  # they have nothing to report
    elif arm.ngram:
        engines["sglang"] |= {"speculative-algorithm": "NGRAM", **base.bench.ngram}
    return parse(tree)


def _tree(base: Config) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.to_builtins(base)
    tree.pop("bench", None)
    return tree


def _left_out(arm: Arm) -> dict[str, Any]:
    """The sections of the techniques that the arm does not have."""
    without: dict[str, Any] = {}
    if not arm.pool:
        without["kv_pool"] = {}
    if not arm.drafts:
        without["draft"] = {}
    return without
