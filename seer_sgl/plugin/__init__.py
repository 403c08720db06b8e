"""What runs inside SGLang: the general plugin of entry point group `sglang.srt.plugins`.

SGLang loads it in the server and in every scheduler process. A plugin that raises is only logged
by SGLang and the server goes on without it, so `load` leaves a record that the driver reads back
through `/server_info` (see effect.py).
"""

from . import cpu, effect, ends, noise, penalties, pool, ports, secrets, stops, weights, work
from .speculation import algorithm


def load() -> None:
    """Register our hooks with SGLang's HookRegistry (called by `load_plugins`)."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    wanted = [effect.hook()]
    for part in (work, weights, pool, stops, ends, noise, penalties, ports, secrets, algorithm):
        wanted += part.hooks()
    if cpu.wanted():
        cpu.prepare_sglang()
        wanted += cpu.hooks()
    for hook in wanted:
        HookRegistry.register(hook.target, hook.function, HookType(hook.kind))
        effect.expected.append(hook.target)
    algorithm.register()
