"""HiCache in a pool that engines share: the name of a layout, acknowledgements, release.

Hooks of SGLang's scheduler process. A rank has one PoolRank (pool_rank.py) once a storage backend
is attached.
"""

import os
import time
from collections.abc import Callable
from typing import TypeVar

from seer_sgl.kvpool.hicache import NAMESPACE
from seer_sgl.kvpool.namespace import KvLayout
from seer_sgl.link import messages
from seer_sgl.link.contract import PoolReport

from .hook import CONTROLLER, HYBRID, KV_ROWS, SCHEDULER, Hook
from .kv_threads import KvThreads
from .pool_rank import PoolRank
from .sglang_types import (
    SglController,
    SglRadixCache,
    SglReq,
    SglScheduleBatch,
    SglScheduler,
    SglStorageConfig,
    SglStorageOperation,
)

R = TypeVar("R")

BUSY_POLL_S = 0.001
RATE_TOKENS = 256  # of a transfer or a prefill; shorter ones would measure a latency, not a rate


class PoolPart:
    """The hooks of one rank for the KV pool. They do nothing before a pool is attached."""

    def __init__(self, rank: PoolRank | None = None) -> None:
        self._rank = rank  # once a storage backend is attached
        self._last_end = 0.0  # seconds (time.monotonic); of the last batch
        self._threads = KvThreads()

    @property
    def attached(self) -> bool:
        """True if this engine stores KV in a pool."""
        return self._rank is not None

    def report(self) -> PoolReport | None:
        """Returns the pool's part of the plugin's report; None without a pool."""
        if self._rank is None:
            return None
        namespace = self._rank.layout.tag(os.environ.get(NAMESPACE, ""))
        return PoolReport(
            namespace,
            self._rank.kv_bytes_per_token,
            broken=self._threads.broken,
            failures=self._threads.failures,
        )

    def hooks(self) -> list[Hook]:
        """Returns the hooks of this part."""
        return [
            Hook(
                f"{CONTROLLER}._generate_storage_config",
                name_the_layout,
                "after",
                "SGLang's page keys do not contain the layout of the KV; it becomes part of the "
                "model's name, so that engines share pages only if they can read them.",
                "SGLang puts dtype, layout, page size and ranks of the KV into its page keys.",
            ),
            Hook(
                f"{HYBRID}.attach_storage_backend",
                self.join,
                "after",
                "SGLang has connected this rank to the pool; the rank's bookkeeping starts.",
                "SGLang acknowledges writes to the pool.",
            ),
            Hook(
                f"{HYBRID}._page_backup",
                self.write_pages,
                "around",
                "SGLang answers a request before its KV is in the pool, and an error would end its "
                "thread that writes; the end of each write triggers the acknowledgement to the "
                "driver.",
                "SGLang acknowledges writes to the pool, and survives their errors.",
            ),
            Hook(
                f"{CONTROLLER}._page_transfer",
                self.pages_fetched,
                "around",
                "SGLang reads pages from the pool here; the time is measured for the driver's "
                "choice between fetching and recomputing.",
                "`/v1/loads` has the tokens and the time of pool reads.",
            ),
            Hook(
                f"{SCHEDULER}.run_batch",
                self.batch_ran,
                "after",
                "On a CPU a batch has ended here; the rate of a prefill is measured for the "
                "driver's choice between fetching and recomputing.",
                "The driver uses the prefill time of `/v1/loads`.",
            ),
            Hook(
                f"{SCHEDULER}.process_batch_result",
                self.batch_processed,
                "after",
                "SGLang has waited for the GPU here; the rate of a prefill is measured as on a "
                "CPU.",
                "The driver uses the prefill time of `/v1/loads`.",
            ),
            Hook(
                f"{KV_ROWS}.release_kv_cache",
                self.call_finished,
                "before",
                "SGLang caches a finished request here and starts to write its KV to the pool; the "
                "names of its pages are recorded for acknowledgement and release.",
                "SGLang acknowledges writes to the pool.",
            ),
            Hook(
                f"{SCHEDULER}.maybe_sleep_on_idle",
                self.keep_awake,
                "around",
                "SGLang's idle sleep lasts up to a second between two steps of a KV transfer; "
                "while a transfer is under way it is a millisecond.",
                "SGLang does not sleep while KV is transferred.",
            ),
            *self._threads.hooks(),
        ]

    def join(self, result: R, controller: SglController, *_: object, **__: object) -> R:
        """Hook after `HybridCacheController.attach_storage_backend`: creates the PoolRank."""
        self._threads.watch(controller)
        self._rank = PoolRank(
            controller, layout_of(controller, controller.storage_config), self._threads
        )
        return result

    def write_pages(
        self,
        stock: Callable[..., None],
        controller: SglController,
        operation: SglStorageOperation,
    ) -> None:
        """Hook around `HybridCacheController._page_backup`: passes on the last page written."""
        self._threads.write(stock, controller, operation)
        if self._rank is not None and operation.hash_value:
            self._rank.written(operation.hash_value[-1])

    def pages_fetched(
        self, stock: Callable[..., int], controller: SglController, operation: object
    ) -> int:
        """Hook around `HiCacheController._page_transfer`: measures the rate of pool reads."""
        began = time.monotonic()
        pages = stock(controller, operation)
        tokens = pages * controller.page_size
        if self._rank is not None and tokens >= RATE_TOKENS:
            self._rank.measured(messages.Rates(0, 0.0, tokens, time.monotonic() - began))
        return pages

    def batch_ran(
        self, result: R, scheduler: SglScheduler, batch: SglScheduleBatch, *_: object, **__: object
    ) -> R:
        """Hook after `Scheduler.run_batch`: measures the rate of prefills on a CPU."""
        if scheduler.device == "cpu":
            self._batch_ended(batch)
        return result

    def batch_processed(
        self, done: R, scheduler: SglScheduler, batch: SglScheduleBatch, *_: object, **__: object
    ) -> R:
        """Hook after `Scheduler.process_batch_result`: measures the rate of prefills on a GPU.

        With overlapped scheduling `batch` is a copy, which has no attributes of ours.
        """
        if scheduler.device != "cpu":
            self._batch_ended(batch)
        return done

    def _batch_ended(self, batch: SglScheduleBatch) -> None:
        """Measures a prefill that ends now.

        With overlapped scheduling SGLang launches a batch while the one before still runs.
        """
        now = time.monotonic()
        began = max(batch.launch_ts or now, self._last_end)
        self._last_end = now
        mode = batch.forward_mode
        if self._rank is not None and mode.is_extend() and not mode.is_target_verify():
            tokens = sum(batch.extend_lens or ())
            if tokens >= RATE_TOKENS and now > began:
                self._rank.measured(messages.Rates(tokens, now - began, 0, 0.0))

    def call_finished(
        self, req: SglReq, tree_cache: SglRadixCache, *cached: bool, **named: bool
    ) -> None:
        """Hook before `release_kv_cache`: registers a finished call with its key.

        cached, named: whether SGLang caches the request; `is_insert`, since 0.5.23 `checkpoint`.
        """
        stored = all((*cached, *named.values())) and not req.skip_radix_cache_insert
        if self._rank is not None and stored:
            from sglang.srt.mem_cache.radix_cache import RadixKey

            tokens = (req.origin_input_ids + req.output_ids)[: req.owned_kv_len()]
            key = RadixKey(
                tokens,
                req.extra_key,
                is_bigram=tree_cache.tree_core.is_eagle,
                cache_salt=req.cache_salt,
            )
            self._rank.finished(req.rid, key.page_aligned(tree_cache.page_size))

    def keep_awake(self, stock: Callable[..., None], scheduler: SglScheduler) -> None:
        """Hook around `Scheduler.maybe_sleep_on_idle`: sleeps a millisecond during KV transfers.

        The scheduler's loop drives the transfers. Stock `--sleep-on-idle` waits up to a second for
        a message between any two steps of a transfer.
        """
        tree = scheduler.tree_cache
        if self._rank is not None and (
            scheduler.waiting_queue
            or tree.ongoing_write_through
            or tree.ongoing_backup
            or tree.ongoing_prefetch
        ):
            time.sleep(BUSY_POLL_S)
            return
        stock(scheduler)


def layout_of(controller: SglController, config: SglStorageConfig) -> KvLayout:
    """Returns the layout of this engine's KV. config: of its storage backend."""
    host = controller.mem_pool_host
    return KvLayout(
        dtype=str(controller.mem_pool_device.store_dtype),
        layout=str(host.layout),
        page_size=controller.page_size,
        tp_size=config.tp_size,
        pp_size=config.pp_size,
    )


def name_the_layout(
    result: SglStorageConfig, controller: SglController, *_: object, **__: object
) -> SglStorageConfig:
    """Hook after `HiCacheController._generate_storage_config`: adds the KV layout to the model's
    name, which is part of every key in every backend."""
    tag = layout_of(controller, result).tag(os.environ.get(NAMESPACE, ""))
    result.model_name = f"{tag}-{result.model_name or ''}"
    return result
