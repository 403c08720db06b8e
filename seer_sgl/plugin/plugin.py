"""The seer-sgl plugin inside one process of SGLang.

SGLang loads the plugin in the server and in every scheduler process. An ability whose needs this
SGLang does not meet is off (ability.py). SGLang only logs an error if a hook cannot be applied.
Therefore each scheduler reports in `/server_info` which abilities are off and which hooks of the
others are missing.
"""

import logging
import os
import pkgutil
from importlib.metadata import version

import msgspec

from seer_sgl.link import contract

from . import (
    batch_invariant_sampling,
    batches,
    cpu,
    image_prompts,
    kv_waits,
    page_hash,
    penalties,
    ports,
    prepare,
    sampling_masks,
    secrets,
    stop_conditions,
)
from .ability import Ability, lacked_by, switched_off, unresolved
from .dp_ranks import DpRank
from .drafting import DraftStatus
from .expert_rows import ExpertCapture
from .hook import SCHEDULER, Hook
from .pool import PoolPart
from .sglang_types import SglInternalState, SglScheduler
from .sources import PACKAGE, Sources
from .speculation import algorithm, graphs
from .weights import Weights
from .work import Work

logger = logging.getLogger(__name__)


class Plugin:
    """The abilities of the plugin and the report. One per process.

    on_cpu: adds the hooks that replace SGLang's GPU code on a machine without a GPU.
    """

    def __init__(self, *, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self._work = Work()
        self._pool = PoolPart()
        self._weights = Weights(self._pool)
        self._drafting = DraftStatus()
        self._experts = ExpertCapture()
        self._dp_rank = DpRank()
        self.off: dict[str, str] = {}  # why abilities are off, by name
        self.abilities = self._abilities()

    def _abilities(self) -> list[Ability]:
        """Returns all abilities; one follows the ones that it needs."""
        report = Hook(
            f"{SCHEDULER}.get_internal_state",
            self.add_report,
            "after",
            "SGLang logs a plugin's failure and continues without it; the report in "
            "`/server_info` shows which hooks are in place.",
            "A plugin can add a section to `/server_info`.",
        )
        cpu_attention, cpu_pages = (["cpu"], ["cpu-pages"]) if self._on_cpu else ([], [])
        return [
            Ability("report", [report], "The server does not start."),
            *(cpu.abilities() if self._on_cpu else ()),
            Ability("warm-up", prepare.hooks(), "The first steps of a rollout are slower."),
            Ability("counters", self._work.hooks(), "The metrics lack the prefilled tokens."),
            Ability(
                "digest",
                self._weights.hooks(),
                "The engine does not name its weights, and takes part in no KV pool.",
            ),
            Ability(
                contract.POOL,
                [*kv_waits.hooks(), *self._pool.hooks()],
                "A request that moves to another engine is computed again.",
                ["digest", *cpu_pages],
                ["pool_rank", "watched_store", "origin"],
            ),
            Ability(
                "page-names",
                page_hash.hooks(),
                "SGLang compiles its hash of page names with a C++ compiler, in a rollout.",
            ),
            Ability(
                "stops",
                stop_conditions.hooks(),
                "The driver looks for stop strings at a chunk's boundary in a window of its own; "
                "the engine does not draft.",
            ),
            Ability(
                contract.EXACT,
                batch_invariant_sampling.hooks(),
                "A seed draws other tokens when other requests of the batch filter.",
                cpu_attention,
            ),
            Ability(
                "penalties",
                penalties.hooks(),
                "Penalties count the newest token a step late, as in stock SGLang.",
            ),
            Ability(
                "batches",
                batches.hooks(),
                "Some requests end the engine beside others, as in stock SGLang.",
            ),
            Ability(
                "sampling-masks",
                sampling_masks.hooks(),
                "A request of a closed session ends the engine beside one with sampling masks.",
            ),
            Ability(
                "experts",
                self._experts.hooks(),
                "The engine returns no routed experts to a driver.",
                parts=["origin"],
            ),
            Ability(
                contract.IMAGES,
                image_prompts.hooks(),
                "A response behind a prompt with images is undivided.",
                parts=["origin"],
            ),
            Ability(
                contract.DP_RANKS,
                self._dp_rank.hooks(),
                "A server of several data-parallel ranks does not start.",
            ),
            Ability(
                contract.PORTS,
                ports.hooks(),
                "The ports of ranks and of Mooncake listen on all interfaces.",
            ),
            Ability(
                contract.SECRETS,
                secrets.hooks(),
                "SGLang writes its keys to its log and into `/server_info`.",
            ),
            Ability("graphs", graphs.hooks(), "An engine on a GPU does not draft."),
            Ability(
                contract.DRAFTS,
                algorithm.hooks(),
                "The engine decodes without drafts.",
                ["stops", *(cpu_attention or ["graphs"])],
                ["speculation", "drafting"],
            ),
        ]

    @property
    def hooks(self) -> list[Hook]:
        """The hooks of the abilities that are not off."""
        on = [ability for ability in self.abilities if ability.name not in self.off]
        return [hook for ability in on for hook in ability.hooks]

    def register(self) -> None:
        """Registers hooks and speculative algorithm with SGLang.

        An ability of which one hook's function cannot be imported is off too.
        """
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        known = self.off
        self.off = switched_off(self.abilities, unresolved, known)
        for name, why in self.off.items():
            if name not in known:
                logger.warning("seer-sgl: `%s` is off: %s", name, why)
        for hook in self.hooks:
            HookRegistry.register(hook.target, hook.function, HookType(hook.kind))
        if contract.DRAFTS not in self.off:
            algorithm.register(self._drafting)

    def missing(self) -> list[str]:
        """Returns the targets at which no hook is in place, of abilities that are not off."""
        return [hook.target for hook in self.hooks if not _in_place(hook)]

    def report(self, scheduler: SglScheduler) -> contract.PluginReport:
        off = self.off
        return contract.PluginReport(
            version=version("seer-sgl"),
            missing=self.missing(),
            off=off,
            instance=os.environ.get(contract.INSTANCE),
            dp_rank=self._dp_rank.number,
            weights=self._weights.name,
            vocab_size=scheduler.model_config.vocab_size,
            pool=self._pool.report(scheduler.tree_cache),
            draft=msgspec.Raw(msgspec.json.encode(self._drafting.report())),
            inexact=self._inexact(scheduler),
            work=None if "counters" in off else self._work.report(scheduler),
            waiting=[] if contract.POOL in off else kv_waits.waiting(scheduler),
            experts=self._experts.shape(scheduler.model_config),
            images=contract.IMAGES not in off
            and scheduler.model_config.is_image_understandable_model,
        )

    def _inexact(self, scheduler: SglScheduler) -> str | None:
        """Returns why steps of this engine may round differently; None if its kernels do not."""
        from .speculation import exactness

        if contract.EXACT in self.off or self._on_cpu:
            return self.off.get(contract.EXACT)
        if contract.DRAFTS in self.off:  # its code finds out about the kernels
            return f"`{contract.DRAFTS}` is off: {self.off[contract.DRAFTS]}"
        status, runner = self._drafting, scheduler.tp_worker.model_runner
        return exactness.obstacle(runner, status.paths, decodes=status.decodes)

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
    """Creates the Plugin of this process and registers it; called by SGLang's `load_plugins`.

    The first process of a server looks at SGLang's sources; its children take over what it found.
    """
    global _current  # noqa: PLW0603 (SGLang's entry point cannot return state)
    plugin = Plugin(on_cpu=cpu.wanted())
    known = os.environ.get(contract.OFF)
    if known is None:
        lacks = lacked_by(Sources.installed(), version(PACKAGE))
        plugin.off = switched_off(plugin.abilities, lacks)
        os.environ[contract.OFF] = msgspec.json.encode(plugin.off).decode()
        for name, why in plugin.off.items():
            logger.warning("seer-sgl: `%s` is off: %s", name, why)
    else:
        plugin.off = msgspec.json.decode(known, type=dict[str, str])
    if cpu.wanted():
        cpu.prepare_sglang(plugin.off)
    plugin.register()
    _current = plugin
