"""Routed experts that belong to the request that asks for them.

SGLang keeps one row per KV slot and reads the rows of a request's slots when it ends. Those can be
other rows than the request's own. KV that was read from host memory or the pool writes no rows into
its slots. A request's slots are given back if the cache has the same tokens. A preempted request
computes its KV again, perhaps with other weights. So a request computes every token whose row it
asks for, and its rows are kept before it can lose a slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from seer_sgl.link.contract import EXPERTS
from seer_sgl.routed_experts import ExpertShape

from .hook import REQ, RESULTS, RUNNER, Hook
from .origin import given_origin
from .sglang_types import (
    SglCapturer,
    SglModelConfig,
    SglReq,
    SglReqToTokenPool,
    SglResult,
    SglResultProcessor,
    SglScheduleBatch,
)

if TYPE_CHECKING:
    import torch

R = TypeVar("R")

# Names of the number of experts in a model's own config.
COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
UNKNOWN = 1 << 15  # experts of a model without such a name: two bytes per value
LARGEST = {"uint8": (1 << 8) - 1, "int16": (1 << 15) - 1}  # value by dtype


class KeptRows:
    """The rows of a request that are kept: from position `start` up to `end`."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.parts: list[torch.Tensor] = []  # each [rows, layers, top_k]

    def add(self, position: int, rows: torch.Tensor) -> None:
        """Keeps rows behind those it has; the first of `rows` is of `position`."""
        new = rows[max(0, self.end - position) :]
        if len(new) and position <= self.end:
            self.parts.append(new.clone())
            self.end += len(new)


class ExpertCapture:
    """The routed experts of one scheduler process. `capturer`: None if it returns none."""

    def __init__(self, capturer: SglCapturer | None = None) -> None:
        self._capturer = capturer

    def hooks(self) -> list[Hook]:
        return [
            Hook(
                f"{RUNNER}.init_routed_experts_capturer",
                self.begin,
                "after",
                "SGLang has created its rows, if the server returns routed experts; their form is "
                "reported to the driver.",
                "SGLang reports the form of its routed experts.",
            ),
            Hook(
                f"{REQ}._compute_max_prefix_len",
                self.compute_wanted,
                "after",
                "SGLang uses cached KV for tokens whose routed experts are asked for, although KV "
                "from host memory or the pool has no rows; such tokens are computed.",
                "Rows of routed experts move with their KV.",
            ),
            Hook(
                f"{RESULTS}.process_batch_result_prefill",
                self.keep_prefilled,
                "before",
                "SGLang then gives slots back whose tokens the cache has in other slots; the rows "
                "that a prefill has computed are kept first.",
                "Rows of routed experts move with their KV.",
            ),
            Hook(
                "sglang.srt.managers.schedule_batch.release_req",
                self.keep_decoded,
                "before",
                "SGLang gives the slots of a preempted request back and computes its tokens again, "
                "perhaps with other weights; their rows are kept.",
                "SGLang keeps the rows of a preempted request.",
            ),
            Hook(
                f"{RESULTS}._maybe_collect_routed_experts",
                self.collect,
                "around",
                "SGLang reads all rows of a finished request from its slots; kept rows come first, "
                "and the driver gets values of one or two bytes instead of four.",
                "SGLang returns routed experts as bytes.",
            ),
        ]

    def shape(self, config: SglModelConfig) -> ExpertShape | None:
        """Returns the form of the rows; None if the server returns none."""
        if self._capturer is None:
            return None
        named = (getattr(config.hf_text_config, name, None) for name in COUNTS)
        experts = next((count for count in named if isinstance(count, int)), UNKNOWN)
        return ExpertShape(self._capturer.num_layers, self._capturer.topk_size, experts)

    def begin(self, result: R, *_: object, **__: object) -> R:
        """Hook after `ModelRunner.init_routed_experts_capturer`."""
        from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

        self._capturer = get_global_experts_capturer()
        return result

    def compute_wanted(self, limit: int, req: SglReq, *_: object, **__: object) -> int:
        """Hook after `Req._compute_max_prefix_len`: returns how many tokens may be cached."""
        kept = self._kept(req)
        return limit if kept is None else min(limit, kept.end)

    def keep_prefilled(
        self, _: object, batch: SglScheduleBatch, result: SglResult, *__: object, **___: object
    ) -> None:
        """Hook before `SchedulerBatchResultProcessor.process_batch_result_prefill`."""
        owners = [self._kept(req) for req in batch.reqs]
        if self._capturer is None or not any(owners):
            return
        if result.routed_experts_output is None:  # without overlap the rows are in their slots
            rows = self._capturer.host_cache.buffer[batch.out_cache_loc.cpu()]
        else:
            if result.copy_done is not None:
                result.copy_done.synchronize()
            rows = result.routed_experts_output.topk
        begin = 0
        lens = zip(batch.prefix_lens or (), batch.extend_lens or (), strict=True)
        for kept, (cached, computed) in zip(owners, lens, strict=True):
            if kept is not None:
                kept.add(cached, rows[begin : begin + computed])
            begin += computed

    def keep_decoded(
        self, *, req: SglReq, req_to_token_pool: SglReqToTokenPool, **_: object
    ) -> None:
        """Hook before `release_req` of a preempted request."""
        kept = self._kept(req)
        if kept is not None and len(req.output_ids):
            computed = len(req.origin_input_ids) + len(req.output_ids) - 1
            kept.add(kept.end, self._in_slots(req, req_to_token_pool, kept.end, computed))

    def collect(
        self, stock: Callable[..., None], processor: SglResultProcessor, req: SglReq
    ) -> None:
        """Hook around `SchedulerBatchResultProcessor._maybe_collect_routed_experts`."""
        kept = self._kept(req)
        if kept is None:
            stock(processor, req)
            return
        import torch

        end = len(req.origin_input_ids) + len(req.output_ids_through_stop) - 1
        late = self._in_slots(req, processor.req_to_token_pool, kept.end, end)
        rows = torch.cat([*kept.parts, late])[: max(0, end - kept.start)]
        req.routed_experts = _narrow(rows, given_origin(req).get(EXPERTS))
        kept.parts.clear()

    def _kept(self, req: SglReq) -> KeptRows | None:
        """Returns the kept rows of a request; None if it gets none."""
        if self._capturer is None or not req.return_routed_experts:
            return None
        kept: KeptRows | None = getattr(req, "seer_rows", None)
        if kept is None:
            kept = req.seer_rows = KeptRows(req.routed_experts_start_len)
        return kept

    def _in_slots(self, req: SglReq, pool: SglReqToTokenPool, begin: int, end: int) -> torch.Tensor:
        """Returns the rows of a request's positions in the slots that it has now."""
        assert self._capturer is not None
        slots = pool.req_to_token[req.kv.req_pool_idx, begin : max(begin, end)]
        return self._capturer.host_cache.buffer[slots.cpu()]


def _narrow(rows: torch.Tensor, dtype: Any) -> torch.Tensor:
    """Returns rows in the driver's dtype, if they fit; unchanged for other clients."""
    import torch

    largest = LARGEST.get(dtype)
    if largest is None or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) <= largest):
        return rows
    narrow: torch.Tensor = rows.to(getattr(torch, dtype))
    return narrow
