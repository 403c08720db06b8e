"""The seer-sgl plugin inside one process of SGLang.

SGLang loads the plugin in the server and in every scheduler process, and only logs an error if a
hook cannot be applied. Therefore each scheduler reports in `/server_info` which hooks are missing.
"""

import os
import pkgutil
from importlib.metadata import version

import msgspec

from seer_sgl.link import contract

from . import (
    cpu,
    ends,
    kv_waits,
    noise,
    page_hash,
    penalties,
    ports,
    prepare,
    secrets,
    stop_windows,
    stops,
)
from .drafting import DraftStatus
from .hook import SCHEDULER, Hook
from .pool import PoolPart
from .sglang_types import SglInternalState, SglScheduler
from .speculation import algorithm
from .weights import Weights
from .work import Work


class Plugin:
    """The parts of the plugin, their hooks, and the report. One per process.

    on_cpu: adds the hooks that replace SGLang's GPU code on a machine without a GPU.
    """

    def __init__(self, *, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self._work = Work()
        self._pool = PoolPart()
        self._weights = Weights(self._pool)
        self._drafting = DraftStatus()
        self.hooks = [
            Hook(
                f"{SCHEDULER}.get_internal_state",
                self.add_report,
                "after",
                "SGLang logs a plugin's failure and continues without it; the report in "
                "`/server_info` shows which hooks are in place.",
            ),
            *prepare.hooks(),
            *self._work.hooks(),
            *kv_waits.hooks(),
            *self._weights.hooks(),
            *self._pool.hooks(),
            *page_hash.hooks(),
            *stops.hooks(),
            *ends.hooks(),
            *stop_windows.hooks(),
            *noise.hooks(),
            *penalties.hooks(),
            *ports.hooks(),
            *secrets.hooks(),
            *algorithm.hooks(),
            *(cpu.hooks() if on_cpu else ()),
        ]

    def register(self) -> None:
        """Registers the hooks and the speculative algorithm with SGLang."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        for hook in self.hooks:
            HookRegistry.register(hook.target, hook.function, HookType(hook.kind))
        algorithm.register(self._drafting)

    def missing(self) -> list[str]:
        """Returns the targets at which no hook is in place."""
        return [hook.target for hook in self.hooks if not _in_place(hook)]

    def report(self, scheduler: SglScheduler) -> contract.PluginReport:
        """Returns the plugin's part of `/server_info`."""
        return contract.PluginReport(
            version=version("seer-sgl"),
            missing=self.missing(),
            hooks=len(self.hooks),
            instance=os.environ.get(contract.INSTANCE),
            weights=self._weights.name,
            vocab_size=scheduler.model_config.vocab_size,
            pool=self._pool.report(),
            draft=msgspec.Raw(msgspec.json.encode(self._drafting.report())),
            inexact=None if self._on_cpu else self._drafting.inexact,
            work=self._work.report(scheduler),
            waiting=kv_waits.waiting(scheduler),
        )

    def add_report(
        self, result: SglInternalState, scheduler: SglScheduler, *_: object, **__: object
    ) -> SglInternalState:
        """Hook after `Scheduler.get_internal_state`: adds the plugin's report."""
        report = msgspec.json.encode(self.report(scheduler))
        result.internal_state[contract.REPORT] = msgspec.json.decode(report)
        return result


def _in_place(hook: Hook) -> bool:
    """Returns whether one of the wrappers around the SGLang function calls the hook's function.

    SGLang wraps some functions itself; a wrapper of HookRegistry keeps the hook in its closure.
    """
    try:
        function = pkgutil.resolve_name(hook.target)
    except (ImportError, AttributeError):
        return False
    while function is not None:
        cells = getattr(function, "__closure__", None) or ()
        if any(cell.cell_contents is hook.function for cell in cells):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


_current: Plugin | None = None


def current() -> Plugin | None:
    """Returns the Plugin of this process; None if SGLang has not loaded it."""
    return _current


def load() -> None:
    """Creates the Plugin of this process and registers it; called by SGLang's `load_plugins`."""
    global _current  # noqa: PLW0603 (SGLang's entry point cannot return state)
    on_cpu = cpu.wanted()
    if on_cpu:
        cpu.prepare_sglang()
    _current = Plugin(on_cpu=on_cpu)
    _current.register()
