"""The name of the weights that this engine serves, which separates their KV from other KV.

The key of KV contains the name of the weights that computed it. The name is a digest of the loaded
parameters of all ranks, computed at start-up and after every call that may have changed them. A
trainer's `weight_version` or a path is no such name: it only states which weights were intended.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from seer_sgl.kvpool.namespace import weights_name
from seer_sgl.link import contract

from .hook import SCHEDULER, Hook
from .pool import PoolPart
from .sglang_types import SglReq, SglScheduler

if TYPE_CHECKING:
    import torch

R = TypeVar("R")

# Bytes per hash call: SGLang's kernel copies non-contiguous tensors and counts words in 32 bits.
PART_BYTES = 1 << 28

# In the names of the messages to a scheduler that may change weights.
_TOUCHING = re.compile(r"(?!Get|Init|Destroy|Send)\w*(Weight|ResumeMemory|Rpc)")


class Weights:
    """The name of the loaded weights, and of the KV that they compute. One per scheduler."""

    def __init__(self, pool: PoolPart) -> None:
        self.name: str | None = None  # None until the weights are loaded
        self._scheduler: SglScheduler | None = None  # the same
        self._pool = pool
        # SGLang names a LoRA adapter of `--lora-paths` by its path, whatever the files contain, so
        # its KV is of one start of one server.
        self._start = os.environ.get(contract.INSTANCE) or uuid.uuid4().hex

    def hooks(self) -> list[Hook]:
        return [
            Hook(
                f"{SCHEDULER}.init_weight_updater",
                self.weights_loaded,
                "after",
                "SGLang has loaded the model here and serves no request yet; the weights get their "
                "name.",
                "SGLang names the loaded weights by a digest.",
            ),
            Hook(
                "sglang.utils.TypeBasedDispatcher.__call__",
                self.message_handled,
                "after",
                "SGLang's scheduler handles every message here; after one that may have changed "
                "the weights, even one that failed half-way, they are named again.",
                "SGLang names the loaded weights by a digest.",
            ),
            Hook(
                f"{SCHEDULER}._add_request_to_queue",
                self.name_the_kv,
                "before",
                "SGLang finds KV by tokens alone; the name of the weights becomes part of the "
                "key, so that no request reads KV of other weights.",
                "SGLang puts the name of the weights into the key of their KV.",
            ),
            Hook(
                f"{SCHEDULER}.stash_chunked_request",
                self.stash_chunk,
                "around",
                "SGLang recomputes a chunk of a long prompt forever if the request may not be "
                "cached; such a request keeps its KV without caching it.",
                "SGLang keeps the chunks of a request that may not be cached.",
            ),
        ]

    def weights_loaded(self, result: R, scheduler: SglScheduler) -> R:
        """Hook after `Scheduler.init_weight_updater`: names the weights before any request."""
        self._scheduler = scheduler
        self.name = _name_of(scheduler)
        return result

    def message_handled(self, result: R, _: object, obj: object) -> R:
        """Hook after `TypeBasedDispatcher.__call__`: names the weights again if need be.

        Also after a trainer's name for weights that it wrote into the engine's memory itself.
        """
        if self._scheduler is not None and _TOUCHING.match(type(obj).__name__):
            self._rename(self._scheduler)
        return result

    def name_the_kv(self, scheduler: SglScheduler, req: SglReq, *_: object, **__: object) -> None:
        """Hook before `Scheduler._add_request_to_queue`: puts the weights' name into the key.

        A waiting request has no KV yet. SGLang also calls this for a request that it takes out of
        a batch, which loses its KV.
        """
        if self._pool.attached:
            self._name_request(req)

    def stash_chunk(self, stock: Callable[..., None], scheduler: SglScheduler, req: SglReq) -> None:
        """Hook around `Scheduler.stash_chunked_request`: keeps the KV of an uncached request.

        SGLang caches each chunk of a long prompt. Before 0.5.23 it drops a chunk that may not be
        cached, and computes it again forever.
        """
        stock(scheduler, req)
        older: Any = req
        if self._pool.attached and req.skip_radix_cache_insert and hasattr(older, "prefix_indices"):
            rows = scheduler.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
            older.prefix_indices = rows[: len(req.get_fill_ids())].long()

    def _rename(self, scheduler: SglScheduler) -> None:
        """Updates the name: no request may read KV of the old weights or store mixed KV."""
        before, self.name = self.name, _name_of(scheduler)
        if self.name == before or not self._pool.attached:
            return
        for req in scheduler.waiting_queue:
            scheduler.tree_cache.release_aborted_request(req.cache_request_handle)  # its fetch
            self._name_request(req)
        for running in (*scheduler.collect_inflight_reqs(), scheduler.chunked_req):
            if running is not None:
                running.skip_radix_cache_insert = True

    def _name_request(self, req: SglReq) -> None:
        if not hasattr(req, "seer_own"):
            req.seer_own = req.extra_key, req.skip_radix_cache_insert
        key, req.skip_radix_cache_insert = req.seer_own
        adapted = self._start if req.lora_id else ""
        req.extra_key = f"{self.name}|{adapted}{key or ''}"


def digest(model: torch.nn.Module) -> str:
    """Returns a digest of a model's parameters and buffers in memory on this rank.

    Tensors computed from the configuration are left out, as in SGLang's own weight check. That also
    leaves out the scales of KV in FP8, which are here: `k_scale` is a parameter if it is of the
    checkpoint, a number if it is of `--quantization-param-path`.
    """
    from sglang.srt.managers.mm_utils import tensor_hash
    from sglang.srt.utils.weight_checker import _is_non_persistent_buffer_name

    hasher = hashlib.blake2b(digest_size=8)
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in sorted(state.items()):
        if not _is_non_persistent_buffer_name(name):
            hasher.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
            for part in _parts(tensor.detach()):
                hasher.update(tensor_hash(part).to_bytes(8, "big"))
    scales = [getattr(module, "k_scale", None) for module in model.modules()]
    hasher.update(repr([scale for scale in scales if isinstance(scale, float)]).encode())
    return hasher.hexdigest()


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.dim() == 0 or tensor.numel() == 0:
        yield tensor
        return
    yield from tensor.split(max(1, PART_BYTES // tensor[0].nbytes))


def _models(scheduler: SglScheduler) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields the models of this rank, with their roles.

    Before 0.5.21 SGLang has no list of them, and a draft model is left out: its KV may be of other
    weights, which costs accepted drafts.
    """
    select: Any = getattr(scheduler.weight_updater, "_select_runners", None)
    if select is None:
        yield "target", scheduler.tp_worker.model_runner.model
        return
    yield from ((role, runner.model) for role, runner in select())


def _name_of(scheduler: SglScheduler) -> str:
    """Returns the name of the loaded weights. All ranks of an engine must call it together.

    A pipeline stage is named by its own ranks only: SGLang reuses a prefix only if all stages have
    it.
    """
    import torch

    updater = scheduler.weight_updater
    here: Any
    open_session = getattr(updater, "_session", None)  # since 0.5.21
    if open_session is not None or "weights" in updater.offload_tags:
        here = uuid.uuid4().hex  # weights are missing: no other request may use this KV
    else:
        torch.get_device_module().synchronize()
        here = [(role, digest(model)) for role, model in _models(scheduler)]
    ranks: list[Any] = [None] * torch.distributed.get_world_size(group=updater.tp_cpu_group)
    torch.distributed.all_gather_object(ranks, here, group=updater.tp_cpu_group)
    return weights_name(scheduler.model_config.hf_config.to_dict(), ranks)
