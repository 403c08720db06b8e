"""The configs of an arm: the benchmark's config without some techniques. Pure."""

from typing import Any

import msgspec

from seer_sgl.config import Config, ExternalEngines, parse

from .arms import Arm
from .config import BenchConfig

# SGLang's own speculation. On a CPU 16 draft tokens are slower than none; 4 are about as fast as 8.
NGRAM = {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": 8}


def arm_config(arm: Arm, base: Config, seed: int, lengths: str | None) -> Config:
    """Returns the config of a rollout of the arm. `lengths`: a file with the true lengths, for the
    oracle."""
    tree = _tree(base)
    tree["scheduling"] |= {
        "policy": arm.policy,
        "lengths": lengths if arm.policy == "oracle" else None,
    }
    if arm.undivided:
        tree["scheduling"]["max_inflight_per_engine"] = None  # all requests are sent at once
    tree["rollout"] |= {"seed": seed, "max_prompts": None, "journal": None}
    if arm.greedy:
        tree["sampling"] |= {"temperature": 0.0}
    return parse(tree | _left_out(arm))


def servers_config(arm: Arm, base: BenchConfig) -> Config:
    """Returns the config of the servers for the arm and all other arms of its kind."""
    tree = _tree(base) | _left_out(arm)
    engines = tree["engines"]
    if isinstance(base.engines, ExternalEngines):
        engines["urls"] = base.bench.urls[arm.kind]
        if not arm.pool and not arm.drafts:
            engines["link"] = None  # plain servers report nothing
    elif arm.ngram:
        engines["sglang"] |= NGRAM
    return parse(tree)


def _tree(base: Config) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.to_builtins(base)
    tree.pop("bench", None)
    return tree


def _left_out(arm: Arm) -> dict[str, Any]:
    """Returns empty sections for the techniques that the arm does not use."""
    without: dict[str, Any] = {}
    if not arm.pool:
        without["kv_pool"] = {}
    if not arm.drafts:
        without["draft"] = {}
    return without
