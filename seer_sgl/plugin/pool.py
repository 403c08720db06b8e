"""HiCache in a pool that engines share: the name of a layout, acknowledgements, release.

Hooks of SGLang's scheduler process. There is one Member (member.py) a rank once a storage backend
is attached; without one none of them does anything.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from seer_sgl.kvpool.hicache import NAMESPACE, REPLICAS
from seer_sgl.kvpool.namespace import Layout
from seer_sgl.link import messages
from seer_sgl.link.contract import PoolReport

from .hook import CONTROLLER, HYBRID, MOONCAKE, SCHEDULER, TREE, Hook
from .pool_member import Member

BUSY_POLL_S = 0.001
RATE_TOKENS = 256  # of a transfer or a prefill that tells a rate: shorter ones tell a latency


def hooks() -> list[Hook]:
    """Returns the hooks of this file."""
    return [
        Hook(
            f"{CONTROLLER}._generate_storage_config",
            name_the_layout,
            "after",
            "SGLang's page keys do not say how KV is laid out; the layout becomes part of the "
            "model's name, so that engines share pages only if they can read them.",
        ),
        Hook(
            f"{HYBRID}.attach_storage_backend",
            join,
            "after",
            "SGLang has connected this rank to the pool; the rank's bookkeeping starts.",
        ),
        Hook(
            f"{HYBRID}._page_backup",
            page_written,
            "after",
            "SGLang answers a request before its KV is in the pool; the end of each write triggers "
            "the acknowledgement to the driver.",
        ),
        Hook(
            f"{CONTROLLER}._page_transfer",
            pages_fetched,
            "around",
            "SGLang reads pages from the pool here; the time is measured for the driver's choice "
            "between fetching and computing again.",
        ),
        Hook(
            f"{SCHEDULER}.run_batch",
            batch_begins,
            "before",
            "SGLang starts a batch here; the start of a prefill is noted to measure its rate.",
        ),
        Hook(
            f"{SCHEDULER}.process_batch_result",
            batch_ended,
            "after",
            "SGLang has finished a batch here; the rate of a prefill is measured for the driver's "
            "choice between fetching and computing again.",
        ),
        Hook(
            f"{TREE}.insert_req",
            call_finished,
            "after",
            "SGLang has cached a finished request and starts to write its KV to the pool; the "
            "names of its pages are recorded for acknowledgement and release.",
        ),
        Hook(
            f"{SCHEDULER}.maybe_sleep_on_idle",
            keep_awake,
            "around",
            "SGLang's idle sleep lasts up to a second between two steps of a KV transfer; while a "
            "transfer is under way it is a millisecond.",
        ),
        Hook(
            f"{MOONCAKE}._put_batch_zero_copy_impl",
            put_replicas,
            "around",
            "SGLang stores one copy of each page; more copies are stored if configured.",
        ),
    ]


_member: Member | None = None


def attached() -> bool:
    """Whether this engine stores KV in a pool."""
    return _member is not None


def report() -> PoolReport | None:
    """Returns the pool's part of the plugin's report; None without a pool."""
    if _member is None:
        return None
    namespace = _member.layout.tag(os.environ.get(NAMESPACE, ""))
    return PoolReport(namespace, _member.kv_bytes_per_token)


def _layout_of(controller: Any) -> Layout:
    host = controller.mem_pool_host
    return Layout(
        dtype=str(controller.mem_pool_device.store_dtype),
        layout=str(host.layout),
        page_size=controller.page_size,
        tp_size=controller.tp_size,
        pp_size=controller.pp_size,
    )


def name_the_layout(result: Any, self: Any, *_: Any, **__: Any) -> Any:
    """After `HiCacheController._generate_storage_config`: the model's name, which is part of every
    key in every backend, also says how its KV is laid out."""
    tag = _layout_of(self).tag(os.environ.get(NAMESPACE, ""))
    result.model_name = f"{tag}-{result.model_name or ''}"
    return result


def join(result: Any, self: Any, *_: Any, **__: Any) -> Any:
    """After `HybridCacheController.attach_storage_backend`: this rank has a pool now."""
    global _member  # noqa: PLW0603 (one scheduler a process)
    _member = Member(self, _layout_of(self))
    return result


def page_written(result: Any, self: Any, operation: Any) -> Any:
    """After `HybridCacheController._page_backup`."""
    if _member is not None and operation.hash_value:
        _member.written(operation.hash_value[-1])
    return result


def pages_fetched(stock: Callable[..., int], self: Any, operation: Any) -> int:
    """Around `HiCacheController._page_transfer`: how fast the pool is read."""
    began = time.monotonic()
    pages = stock(self, operation)
    tokens = pages * self.page_size
    if _member is not None and tokens >= RATE_TOKENS:
        _member.measured(messages.Rates(0, 0.0, tokens, time.monotonic() - began))
    return pages


def batch_begins(self: Any, batch: Any, *_: Any, **__: Any) -> None:
    """Before `Scheduler.run_batch`."""
    if _member is not None and batch.forward_mode.is_extend():
        batch.seer_began = time.monotonic()


def batch_ended(result: Any, self: Any, batch: Any, *_: Any, **__: Any) -> Any:
    """After `Scheduler.process_batch_result`: how fast the engine prefills."""
    began = getattr(batch, "seer_began", None)
    if _member is not None and began is not None and batch.forward_mode.is_extend():
        tokens = batch.extend_num_tokens or 0
        if tokens >= RATE_TOKENS:
            _member.measured(messages.Rates(tokens, time.monotonic() - began, 0, 0.0))
    return result


def call_finished(result: Any, self: Any, req: Any, *, up_to: int, **_: Any) -> Any:
    """After `UnifiedRadixCache.insert_req`: a call is over, its KV on its way to the pool."""
    if _member is not None:
        from sglang.srt.mem_cache.radix_cache import RadixKey

        tokens = (req.origin_input_ids + req.output_ids)[:up_to]
        key = RadixKey(
            tokens,
            req.extra_key,
            is_bigram=self.tree_core.is_eagle,
            cache_salt=req.cache_salt,
        )
        _member.finished(req.rid, key.page_aligned(self.page_size))
    return result


def keep_awake(stock: Callable[..., None], self: Any) -> None:
    """Around `Scheduler.maybe_sleep_on_idle`: KV on its way is moved on by this very loop.

    Stock `--sleep-on-idle` waits up to a second for a message between any two steps of a transfer.
    """
    tree = self.tree_cache
    if _member is not None and (
        self.waiting_queue
        or tree.ongoing_write_through
        or tree.ongoing_backup
        or tree.ongoing_prefetch
    ):
        time.sleep(BUSY_POLL_S)
        return
    stock(self)


def put_replicas(  # noqa: PLR0917 (SGLang's signature)
    stock: Callable[..., Any], self: Any, keys: Any, pointers: Any, sizes: Any, groups: Any = None
) -> Any:
    """Around `MooncakeStore._put_batch_zero_copy_impl`: more than one copy, if configured."""
    extra = self.storage_config.extra_config or {}
    replicas = extra.get(REPLICAS, 1)
    if replicas == 1 or groups is not None or self._uses_multi_buffer(pointers):
        return stock(self, keys, pointers, sizes, groups)
    config = self._replicate_config_cls()
    config.replica_num = replicas
    return self.store.batch_put_from(keys, pointers, sizes, config)
