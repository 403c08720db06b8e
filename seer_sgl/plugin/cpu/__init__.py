"""The code that SGLang lacks on a machine without a GPU.

Stock SGLang imports compiled CPU kernels from `sgl_kernel`, whose published wheel is CUDA only.
Its `torch_native` attention recomputes a whole sequence for every continuation. With a GPU nothing
of this package is installed.

`prepare` must run before the first import of `sglang` in every process. The server's main module
calls it, because spawned scheduler processes import that module again. `prepare_sglang` and
`abilities` run when SGLang loads its plugins.
"""

import importlib.util
import os
import sys
from collections.abc import Collection
from typing import Any

from seer_sgl.link.contract import CPU_SWITCH
from seer_sgl.plugin.ability import Ability
from seer_sgl.plugin.hook import RUNNER, TORCH_NATIVE, Hook


def wanted() -> bool:
    """Returns whether this process runs SGLang's CPU engine."""
    return os.environ.get(CPU_SWITCH) == "1"


def prepare() -> None:
    """Makes `import sglang` possible: torchvision schemas and the `sgl_kernel` stand-in."""
    if not wanted():
        return
    from seer_sgl.torchvision_schemas import define_missing_schemas

    define_missing_schemas()
    if "sgl_kernel" not in sys.modules and importlib.util.find_spec("sgl_kernel") is None:
        from . import kernels, speculative_kernels

        sys.modules["sgl_kernel"] = kernels
        sys.modules["sgl_kernel.speculative"] = speculative_kernels


def abilities() -> list[Ability]:
    from . import hicache

    return [
        Ability(
            "cpu",
            hooks(),
            "Attention is SGLang's own: slow for continuations, and without drafts and seeds.",
        ),
        Ability("cpu-pages", hicache.hooks(), "There is no KV pool on a CPU."),
    ]


def hooks() -> list[Hook]:
    from .attention import decode_grouped, extend_new_rows_only
    from .tree_attention import attend_to_trees, plan_trees

    def no_batch_invariant_triton_kernels(runner: object) -> None:
        """Does nothing: Triton needs a GPU, and `torch_native` computes each request alone."""

    return [
        Hook(
            f"{TORCH_NATIVE}._run_sdpa_forward_extend",
            extend_new_rows_only,
            "around",
            "SGLang computes a continuation as if the whole sequence were new; only the new tokens "
            "are computed.",
            "`torch_native` computes the new tokens of a continuation only.",
        ),
        Hook(
            f"{TORCH_NATIVE}._run_sdpa_forward_decode",
            decode_grouped,
            "around",
            "SGLang repeats every KV head for each of its query heads; the query heads become rows "
            "of one query instead.",
            "`torch_native` repeats no KV heads.",
        ),
        Hook(
            f"{TORCH_NATIVE}.init_forward_metadata",
            plan_trees,
            "after",
            "SGLang's `torch_native` cannot verify draft trees; their masks are prepared here, "
            "once per step.",
            "`torch_native` verifies draft trees.",
        ),
        Hook(
            f"{TORCH_NATIVE}.forward_extend",
            attend_to_trees,
            "around",
            "SGLang's `torch_native` cannot verify draft trees; each draft token attends to the "
            "tokens before the draft and to its own ancestors.",
            "`torch_native` verifies draft trees.",
        ),
        Hook(
            f"{RUNNER}.maybe_enable_batch_invariant_mode",
            no_batch_invariant_triton_kernels,
            "replace",
            "SGLang's deterministic mode switches to Triton kernels, which a CPU cannot run.",
            "Deterministic inference on a CPU uses no Triton kernels.",
        ),
    ]


def prepare_sglang(off: Collection[str]) -> None:
    """Changes the lists and constants of SGLang that no hook can change.

    off: the abilities that are off.
    """
    from . import hicache

    if "cpu" not in off:
        _allow_deterministic_inference()
        _allocate_ordinary_memory()
        _pad_batches()
    if "cpu-pages" not in off:
        hicache.reserve_less_memory()


def _allow_deterministic_inference() -> None:
    """Permits `--enable-deterministic-inference` (per-request seeds) with `torch_native`."""
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


def _allocate_ordinary_memory() -> None:
    """Lets `--enable-return-routed-experts` have memory that is not page-locked by CUDA."""
    from sglang.srt.mem_cache.pool_host import common

    def ordinary(
        dims: tuple[int, ...], *, dtype: Any, device: str, allocator: Any, **_: object
    ) -> Any:
        return allocator.allocate(dims, dtype=dtype, device=device)

    common.ALLOC_MEMORY_FUNCS["cpu"] = ordinary


def _pad_batches() -> None:
    """Lets `--enable-dp-attention` pad the batches of its ranks to one size.

    `ForwardBatch._pad_inputs_to_size` asks for the length of a padded row; SGLang 0.5.21 asks a
    CPU's backend by a name that `torch_native` lacks.
    """
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    backend: Any = TorchNativeAttnBackend
    if not hasattr(backend, "get_cpu_graph_seq_len_fill_value"):
        backend.get_cpu_graph_seq_len_fill_value = lambda self: 1  # as IntelAMXAttnBackend's
