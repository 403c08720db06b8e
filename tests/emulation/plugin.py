"""The test-only SGLang plugin that makes a CPU engine take the code of GPU engines.

SGLang loads it in every process of a server, beside ours (server.py).
"""

from seer_sgl.plugin import cpu

from .server import settings

ON_GPU = "seer_sgl.plugin.speculation.shapes.on_gpu"
FULL_MASK = "sglang.srt.speculative.eagle_utils.default_tree_mask_mode"
CORES = "sglang.srt.utils.common.get_device_core_count"
MULTIPROCESSORS = 132  # of an H100; Triton's decode kernel splits contexts by them


def load() -> None:
    """Installs the emulation in this process; called by SGLang's `load_plugins`."""
    if not cpu.wanted():
        raise RuntimeError("the emulation is for CPU engines")
    from . import counts, graphs, late, overlap, turns, waits

    chosen, counted = settings(), counts.Counts()
    counts.install(counted)
    overlap.install()
    late.install(counted, waits.install(counted))
    if chosen.triton:
        graphs.install(counted)
        _as_on_a_gpu()
    if chosen.every_width:
        turns.install()


def _as_on_a_gpu() -> None:
    """Makes SGLang and us decide as on a GPU where the attention depends on it."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.eagle_utils import TreeMaskMode

    from seer_sgl.plugin.speculation import profile

    HookRegistry.register(ON_GPU, lambda _: True, HookType.REPLACE)
    HookRegistry.register(FULL_MASK, lambda: TreeMaskMode.FULL_MASK, HookType.REPLACE)
    HookRegistry.register(CORES, lambda _=0: MULTIPROCESSORS, HookType.REPLACE)
    # The interpreter is slow, and its times decide nothing here.
    profile.ROUNDS, profile.CONTEXT = 1, 64
