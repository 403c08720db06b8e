"""What SGLang 0.5.21 lacks on a machine without a GPU.

Stock SGLang imports compiled CPU kernels from `sgl_kernel`, whose published wheel is CUDA only,
and its `torch_native` attention recomputes a whole sequence for every continuation. With a GPU
none of this is wanted and none of it is installed.

Two moments: `prepare` must run before the first import of `sglang` in every process (the server's
main module does so, because spawned scheduler processes import that module again); `register`
runs when SGLang loads its plugins.
"""

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

from seer_sgl.link.contract import CPU_SWITCH


def wanted() -> bool:
    """Whether this process runs SGLang's CPU engine."""
    return os.environ.get(CPU_SWITCH) == "1"


def prepare() -> None:
    """Make `import sglang` possible: the torchvision schemas and the `sgl_kernel` stand-in."""
    if not wanted():
        return
    from .torchvision_schemas import define_missing_schemas

    define_missing_schemas()
    if "sgl_kernel" not in sys.modules and importlib.util.find_spec("sgl_kernel") is None:
        from . import kernels, speculative_kernels

        sys.modules["sgl_kernel"] = kernels
        sys.modules["sgl_kernel.speculative"] = speculative_kernels


def hooks() -> list[tuple[str, Callable[..., Any], str]]:
    """The hooks of the CPU engine as (SGLang target, function, kind of hook)."""
    from . import hicache
    from .attention import decode_grouped, extend_new_rows_only
    from .tree_attention import attend_to_trees, plan_trees

    backend = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"

    def no_batch_invariant_triton_kernels(self: Any) -> None:
        """Those kernels are Triton; on a CPU `torch_native` runs each request by itself."""

    return [
        (f"{backend}._run_sdpa_forward_extend", extend_new_rows_only, "around"),
        (f"{backend}._run_sdpa_forward_decode", decode_grouped, "around"),
        (f"{backend}.init_forward_metadata", plan_trees, "after"),
        (f"{backend}.forward_extend", attend_to_trees, "around"),
        (
            "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode",
            no_batch_invariant_triton_kernels,
            "replace",
        ),
        *hicache.hooks(),
    ]


def prepare_sglang() -> None:
    """What is no hook: SGLang's own lists and constants."""
    from . import hicache

    _allow_deterministic_inference()
    hicache.reserve_less_memory()


def _allow_deterministic_inference() -> None:
    """Let `--enable-deterministic-inference` (per-request seeds) run on `torch_native`."""
    from sglang.srt.arg_groups import choices

    for allowed, add in (
        (
            choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES,
            choices.add_deterministic_attention_backend_choices,
        ),
        (
            choices.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND,
            choices.add_radix_supported_deterministic_attention_backend_choices,
        ),
    ):
        if "torch_native" not in allowed:
            add(["torch_native"])
