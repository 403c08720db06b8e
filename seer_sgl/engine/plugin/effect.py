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


def problem(reports: Sequence[dict[str, Any] | None]) -> str | None:
    """What is wrong with the plugin in a server; None when all is well.

    reports: what each of its schedulers has under `KEY` in `/server_info`.
    """
    for report in reports:
        if report is None:
            return "the seer-sgl plugin was not loaded by SGLang's scheduler"
        if report["missing"]:
            return f"the seer-sgl plugin could not hook {', '.join(report['missing'])}"
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
            "pool": pool.facts(),
            "draft": drafting.facts(),
            "work": work.facts(scheduler),
        }
        return result

    return ("sglang.srt.managers.scheduler.Scheduler.get_internal_state", add_report, "after")
