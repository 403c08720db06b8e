"""SGLang's overlapped event loop with speculation, which SGLang and we refuse on a CPU.

The streams and events are those of `torch.cpu`, which do nothing. So the order of the host's calls
is that of a GPU machine, but every step ends before the call that launches it returns.
"""

from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

SPECULATION = "sglang.srt.arg_groups.speculative_hook.handle_speculative_decoding"


def install() -> None:
    """Allows overlapped scheduling for drafting engines."""
    HookRegistry.register(SPECULATION, _overlap, HookType.AFTER)
    # A CPU tensor belongs to no stream.
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]


def _overlap(_: object, server_args: Any) -> None:
    """Hook after `handle_speculative_decoding`: the last declaration of a field counts."""
    from sglang.srt.arg_groups.overrides import declare_resolution

    declare_resolution(server_args, "tests.emulation", disable_overlap_schedule=False)
