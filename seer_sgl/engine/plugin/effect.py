"""Proof that the plugin took effect, readable from outside the process.

SGLang swallows a hook that cannot be applied. After start-up each scheduler therefore tells, in
its part of `/server_info`, which of our hooks really stand where they should.
"""

import os
import pkgutil
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from . import drafting, frames, pool, weights, work

KEY = "seer_sgl"  # in internal_states[i] of /server_info

expected: list[str] = []  # dotted SGLang names that should be hooked in this process


def missing() -> list[str]:
    """The hooked names whose hook is not in place (not there, or not wrapped)."""
    return [target for target in expected if not _is_hooked(target)]


def problem(missing: Sequence[Sequence[str] | None]) -> str | None:
    """What is wrong with the plugin in a server; None when all is well.

    missing: the names that each of its schedulers reports as such; None: it reports nothing.
    """
    for names in missing:
        if names is None:
            return "the seer-sgl plugin was not loaded by SGLang's scheduler"
        if names:
            return f"the seer-sgl plugin could not hook {', '.join(names)}"
    return None


def _is_hooked(target: str) -> bool:
    try:
        return hasattr(pkgutil.resolve_name(target), "__wrapped__")
    except (ImportError, AttributeError):
        return False


def hook() -> tuple[str, Callable[..., Any], str]:
    """After `Scheduler.get_internal_state`: add our report under `KEY`."""

    def add_report(result: Any, scheduler: Any, *_: Any, **__: Any) -> Any:
        result.internal_state[KEY] = {
            "version": version("seer-sgl"),
            "hooks": len(expected),
            "missing": missing(),
            "instance": os.environ.get(frames.INSTANCE),
            "weights": weights.facts(),
            "vocab_size": scheduler.model_config.vocab_size,
            "pool": pool.facts(),
            "draft": drafting.facts(),
            "work": work.facts(scheduler),
        }
        return result

    return ("sglang.srt.managers.scheduler.Scheduler.get_internal_state", add_report, "after")
