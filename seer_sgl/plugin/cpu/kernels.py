"""A stand-in for the compiled package `sgl_kernel`, put into `sys.modules` on CPU machines.

It defines the names that SGLang 0.5.21 imports on its CPU path. Plain decoding calls only the hash
for seeded sampling; speculative decoding calls the other functions.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

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

U64 = npt.NDArray[np.uint64]
_LOW_32 = np.uint64(0xFFFFFFFF)


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


def _rotate_left(x: U64, bits: int) -> U64:
    return ((x << np.uint64(bits)) | (x >> np.uint64(32 - bits))) & _LOW_32


def _mix(hashed: U64, block: U64) -> U64:
    """Does one round of MurmurHash3 (32 bit) on 32-bit values held in 64-bit integers."""
    block = (block * np.uint64(0xCC9E2D51)) & _LOW_32
    block = (_rotate_left(block, 15) * np.uint64(0x1B873593)) & _LOW_32
    hashed = _rotate_left(hashed ^ block, 13)
    return (hashed * np.uint64(5) + np.uint64(0xE6546B64)) & _LOW_32


def murmur_hash32(
    seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """Returns MurmurHash3 of (seed, position, column), as in
    `sglang.kernels.ops.sampling.murmur_hash`.

    seed: uint64 [rows]; positions: integer [rows]; columns: integer [vocabulary].
    The result, uint32 [rows, vocabulary], is the source of SGLang's per-request Gumbel noise.
    """
    seeds = seed.view(torch.int64).numpy().view(np.uint64)[:, None]
    rows = positions.to(torch.int64).numpy().view(np.uint64)[:, None] & _LOW_32
    cols = columns.to(torch.int64).numpy().view(np.uint64)[None, :] & _LOW_32
    hashed = _mix(np.zeros_like(seeds), seeds & _LOW_32)
    hashed = _mix(hashed, seeds >> np.uint64(32))
    hashed = _mix(hashed, rows)
    hashed = _mix(hashed, cols)
    hashed = hashed ^ np.uint64(16)
    hashed ^= hashed >> np.uint64(16)
    hashed = (hashed * np.uint64(0x85EBCA6B)) & _LOW_32
    hashed ^= hashed >> np.uint64(13)
    hashed = (hashed * np.uint64(0xC2B2AE35)) & _LOW_32
    hashed ^= hashed >> np.uint64(16)
    return torch.from_numpy(hashed.astype(np.uint32))


_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_library.impl("murmur_hash32_cpu", murmur_hash32, "CPU")
for _name in _IMPORTED_ONLY:
    _library.define(f"{_name}() -> ()")
