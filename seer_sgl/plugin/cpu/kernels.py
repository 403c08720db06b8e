"""A stand-in for the compiled package `sgl_kernel`, put into `sys.modules` on CPU machines.

It defines the names that SGLang 0.5.21 imports on its CPU path. Plain decoding calls only the hash
for seeded sampling; speculative decoding calls the other functions.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch

from seer_sgl import seeded_noise

from .speculative_kernels import (
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "murmur_hash32",
    "verify_tree_greedy_cpu",
]

# SGLang's processors of images import models that look these kernels up. None runs here.
_IMPORTED_ONLY = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_qkvzba_split_reshape_cat_cpu",
)
# SGLang imports these names for speculative decoding with a draft model, which does not run here.
_DRAFT_MODEL = frozenset(
    {
        "assign_draft_cache_locs_contiguous_cpu",
        "build_tree_kernel_efficient_cpu",
        "fill_bonus_tokens_cpu",
    }
)


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name not in _DRAFT_MODEL:
        raise AttributeError(f"sgl_kernel has no {name!r} on a CPU")

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{name} has no CPU version here: draft models only")

    return refuse


def murmur_hash32(
    seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """Returns MurmurHash3 of (seed, position, column), as in
    `sglang.kernels.ops.sampling.murmur_hash`.

    seed: uint64 [rows]; positions: integer [rows]; columns: integer [vocabulary].
    The result, uint32 [rows, vocabulary], is the source of SGLang's per-request Gumbel noise.
    """
    hashed = seeded_noise.murmur_hash32(
        seed.view(torch.int64).numpy().view(np.uint64),
        positions.to(torch.int64).numpy().view(np.uint64),
        columns.to(torch.int64).numpy().view(np.uint64),
    )
    return torch.from_numpy(hashed)


_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_library.impl("murmur_hash32_cpu", murmur_hash32, "CPU")
for _name in _IMPORTED_ONLY:
    _library.define(f"{_name}() -> ()")
