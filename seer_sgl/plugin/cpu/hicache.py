"""HiCache on a CPU: pages without Triton, copies between KV pools without CUDA kernels.

It covers plain MHA pools only: MLA, sliding-window and Mamba pools do not run on a CPU.
"""

from typing import Any

import torch

from seer_sgl.plugin.hook import ALLOCATOR, HOST_POOL, Hook
from seer_sgl.plugin.sglang_types import SglAllocator, SglHostPool, SglKVPool

_PIN_MEMORY_POSITION = 6  # of MHATokenToKVPoolHost.__init__, self included
HOST_RESERVE_BYTES = 1 << 30


def hooks() -> list[Hook]:
    return [
        Hook(
            f"{HOST_POOL}.__init__",
            unpinned,
            "before",
            "SGLang requests page-locked host memory from CUDA; a CPU uses ordinary memory.",
            "HiCache on a CPU asks for ordinary memory.",
        ),
        Hook(
            f"{HOST_POOL}.backup_from_device_all_layer",
            copy_to_host,
            "replace",
            "SGLang copies KV to host memory with CUDA kernels; on a CPU torch copies it.",
            "HiCache on a CPU copies with torch.",
        ),
        Hook(
            f"{HOST_POOL}.load_to_device_per_layer",
            copy_from_host,
            "replace",
            "SGLang copies KV from host memory with CUDA kernels; on a CPU torch copies it.",
            "HiCache on a CPU copies with torch.",
        ),
        Hook(
            f"{ALLOCATOR}.alloc_extend",
            alloc_extend,
            "replace",
            "SGLang allocates pages for a prefill with a Triton kernel; on a CPU its own torch "
            "version does so.",
            "Pages are allocated on a CPU without Triton.",
        ),
        Hook(
            f"{ALLOCATOR}.alloc_decode",
            alloc_decode,
            "replace",
            "SGLang allocates pages for a decode step with a Triton kernel; on a CPU torch does.",
            "Pages are allocated on a CPU without Triton.",
        ),
    ]


def reserve_less_memory() -> None:
    """Lowers the host memory that SGLang keeps free; its 10 GiB suit servers with GPUs."""
    from sglang.srt.mem_cache.pool_host import base

    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = HOST_RESERVE_BYTES


def unpinned(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Hook before `MHATokenToKVPoolHost.__init__`: disables page-locked memory."""
    if len(args) > _PIN_MEMORY_POSITION:
        args = (*args[:_PIN_MEMORY_POSITION], False, *args[_PIN_MEMORY_POSITION + 1 :])
    else:
        kwargs["pin_memory"] = False
    return args, kwargs


def _layer(pool: SglHostPool, buffer: torch.Tensor, layer: int) -> torch.Tensor:
    """Returns one layer of a host buffer in any of its layouts; `_at` returns its indices."""
    if pool.layout == "layer_first":  # [layer, token, head, size]
        return buffer[layer]
    if pool.layout in ("page_first", "page_first_direct"):  # [token or page, layer, ...]
        return buffer[:, layer]
    if pool.layout == "page_head":  # [page, head, offset, layer, size]
        return buffer[:, :, :, layer].transpose(1, 2)
    raise ValueError(f"no CPU copy for HiCache layout {pool.layout}")


def _at(pool: SglHostPool, view: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns indices of host token slots in a view of `_layer`: by token, or page and offset."""
    token_dims = 3
    if view.dim() == token_dims:
        return (tokens,)
    return (tokens // pool.page_size, tokens % pool.page_size)


def copy_to_host(
    self: SglHostPool,
    device_pool: SglKVPool,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    io_backend: str,
) -> None:
    """Hook instead of `MHATokenToKVPoolHost.backup_from_device_all_layer`."""
    # Since 0.5.23, SGLang does not keep the pools of draft models here; a CPU engine has none.
    pools = (device_pool, *getattr(self, "mtp_draft_device_pools", ()))
    for name, host in (("k_buffer", self.k_buffer), ("v_buffer", self.v_buffer)):
        layers = [layer for pool in pools for layer in getattr(pool, name)]
        for number, layer in enumerate(layers):
            view = _layer(self, host, number)
            rows = layer.view(-1, self.head_num, self.head_dim)[device_indices]
            view[_at(self, view, host_indices)] = rows


def copy_from_host(  # noqa: PLR0917 (SGLang's signature)
    self: SglHostPool,
    device_pool: SglKVPool,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    layer_id: int,
    io_backend: str,
    *,
    is_draft: bool = False,
) -> None:
    """Hook instead of `MHATokenToKVPoolHost.load_to_device_per_layer`."""
    layer = 0 if is_draft else layer_id
    for device, host in (
        (device_pool.k_buffer[layer], self.k_buffer),
        (device_pool.v_buffer[layer], self.v_buffer),
    ):
        view = _layer(self, host, layer_id)
        device.view(-1, self.head_num, self.head_dim)[device_indices] = view[
            _at(self, view, host_indices)
        ]


def alloc_extend(  # noqa: PLR0917 (SGLang's signature)
    self: SglAllocator,
    prefix_lens: torch.Tensor,
    prefix_lens_cpu: torch.Tensor,
    seq_lens: torch.Tensor,
    seq_lens_cpu: torch.Tensor,
    last_loc: torch.Tensor,
    extend_num_tokens: int,
    num_new_pages: int | None = None,
) -> torch.Tensor | None:
    """Hook instead of `PagedTokenToKVPoolAllocator.alloc_extend`: SGLang's own torch version.

    Returns the slots, int64; None if too few pages are free.
    """
    from sglang.srt.mem_cache.allocator.paged import alloc_extend_naive

    size = self.page_size
    if num_new_pages is None:
        pages = (seq_lens_cpu + size - 1) // size - (prefix_lens_cpu + size - 1) // size
        num_new_pages = int(pages.sum())
    if not _has_pages(self, num_new_pages):
        return None
    slots = torch.empty((extend_num_tokens,), dtype=torch.int64)
    alloc_extend_naive(prefix_lens, seq_lens, last_loc, self.free_pages, slots, size, self.device)
    self.free_pages = self.free_pages[num_new_pages:]
    return slots


def _has_pages(allocator: SglAllocator, count: int) -> bool:
    if count > len(allocator.free_pages):
        allocator.merge_and_sort_free()
    return count <= len(allocator.free_pages)


def alloc_decode(
    self: SglAllocator, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
) -> torch.Tensor | None:
    """Hook instead of `PagedTokenToKVPoolAllocator.alloc_decode`: one slot per request.

    A request whose page is full gets a new one. Returns None if too few pages are free.
    """
    opens_page = (seq_lens - 1) % self.page_size == 0
    needed = int(opens_page.sum())
    if not _has_pages(self, needed):
        return None
    slots = last_loc.to(torch.int64) + 1
    slots[opens_page] = self.free_pages[:needed] * self.page_size
    self.free_pages = self.free_pages[needed:]
    return slots
