"""Proof that the plugin took effect, readable from outside the process.

SGLang swallows a hook that cannot be applied. After start-up each scheduler therefore tells, in
its part of `/server_info`, which of our hooks really stand where they should.
"""

import os
import pkgutil
from importlib.metadata import version
from typing import Any

import msgspec

from seer_sgl.link import contract

from . import drafting, pool, weights, work
from .hook import SCHEDULER, Hook

expected: list[str] = []  # dotted SGLang names that should be hooked in this process


def missing() -> list[str]:
    """The hooked names whose hook is not in place (not there, or not wrapped)."""
    return [target for target in expected if not _is_hooked(target)]


def _is_hooked(target: str) -> bool:
    try:
        return hasattr(pkgutil.resolve_name(target), "__wrapped__")
    except (ImportError, AttributeError):
        return False


def hook() -> Hook:
    """Returns the hook that adds the PluginReport."""

    def add_report(result: Any, scheduler: Any, *_: Any, **__: Any) -> Any:
        report = contract.PluginReport(
            version=version("seer-sgl"),
            missing=missing(),
            hooks=len(expected),
            instance=os.environ.get(contract.INSTANCE),
            weights=weights.facts(),
            vocab_size=scheduler.model_config.vocab_size,
            pool=pool.report(),
            draft=msgspec.Raw(msgspec.json.encode(drafting.facts())),
            work=work.report(scheduler),
        )
        result.internal_state[contract.REPORT] = msgspec.json.decode(msgspec.json.encode(report))
        return result

    return Hook(
        f"{SCHEDULER}.get_internal_state",
        add_report,
        "after",
        "SGLang logs a plugin's failure and goes on without it; the report in `/server_info` shows "
        "which hooks are in place.",
    )
