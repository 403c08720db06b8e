"""HiCache in a pool that engines share: the name of a layout, acknowledgements, release.

Hooks of SGLang's scheduler process. A rank has one PoolRank (pool_rank.py) once a storage backend
is created.
"""

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from seer_sgl.kvpool.hicache import NAMESPACE
from seer_sgl.kvpool.namespace import KvLayout
from seer_sgl.link import messages
from seer_sgl.link.contract import PoolReport

from .hook import SCHEDULER, Hook
from .kv_threads import KvThreads
from .pool_rank import PoolRank
from .sglang_types import (
    SglHostPool,
    SglRadixCache,
    SglReq,
    SglScheduleBatch,
    SglScheduler,
    SglStorageConfig,
    SglWatchedStore,
)
from .watched_store import Watch, watched

R = TypeVar("R")

BUSY_POLL_S = 0.001
FULL_PAGES = 128  # of one read (SGLang's STORAGE_BATCH_SIZE)
RATE_TOKENS = 256  # of a transfer or a prefill; shorter ones would measure a latency, not a rate


class PoolPart:
    """The hooks of one rank for the KV pool. They do nothing before a pool is attached."""

    def __init__(self, rank: PoolRank | None = None) -> None:
        self._rank = rank  # once a storage backend is attached
        self._last_end = 0.0  # seconds (time.monotonic); of the last batch
        self._on_gpu: SglScheduler | None = None  # once it has run a batch
        self._threads = KvThreads()

    @property
    def attached(self) -> bool:
        return self._rank is not None

    def report(self, tree: SglRadixCache) -> PoolReport | None:
        """Returns the pool's part of the plugin's report; None without a pool."""
        if self._rank is None or not tree.cache_controller.enable_storage:
            return None
        namespace = self._rank.layout.tag(os.environ.get(NAMESPACE, ""))
        return PoolReport(
            namespace,
            self._rank.kv_bytes_per_token,
            broken=self._threads.broken(tree.cache_controller),
        )

    def hooks(self) -> list[Hook]:
        return [
            Hook(
                "sglang.srt.mem_cache.storage.backend_factory.StorageBackendFactory.create_backend",
                self.open_store,
                "around",
                "SGLang's page keys lack the layout of the KV, and its threads report no end of a "
                "write, no time of a read, and die of an error; the layout becomes part of the "
                "model's name, and the backend's calls are watched.",
                "A plugin can register a backend under a name of its own, for every way of storing "
                "pages.",
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
                "sglang.srt.mem_cache.common.release_kv_cache",
                self.call_finished,
                "before",
                "SGLang caches a finished request here and starts to write its KV to the pool, "
                "perhaps before the step under way has computed the newest token's; the write "
                "waits for it, and the pages' names are recorded for acknowledgement and release.",
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

    def open_store(
        self,
        stock: Callable[..., R],
        factory: type,
        backend_name: str,
        storage_config: SglStorageConfig,
        mem_pool_host: SglHostPool,
        **kwargs: object,
    ) -> R:
        """Hook around `StorageBackendFactory.create_backend`: watches the backend's calls.

        The model's name in the configuration is part of every key in every backend.
        """
        layout = layout_of(mem_pool_host, storage_config)
        tag = layout.tag(os.environ.get(NAMESPACE, ""))
        storage_config.model_name = f"{tag}-{storage_config.model_name or ''}"
        store = stock(factory, backend_name, storage_config, mem_pool_host, **kwargs)
        self._threads.watch()
        self._rank = PoolRank(
            cast(SglWatchedStore, store),
            storage_config,
            layout,
            mem_pool_host.size_per_token,
            self._threads,
        )
        watch = Watch(self._threads, self._rank.written, self.pages_read)
        store.__class__ = watched(type(store), watch)
        return store

    def pages_read(self, pages: int, seconds: float) -> None:
        """Measures the rate of pool reads. A thread of SGLang."""
        if self._rank is not None:
            tokens = pages * self._rank.layout.page_size
            if tokens >= RATE_TOKENS or pages >= FULL_PAGES:
                self._rank.measured(messages.Rates(0, 0.0, tokens, seconds))

    def batch_ran(
        self, result: R, scheduler: SglScheduler, batch: SglScheduleBatch, *_: object, **__: object
    ) -> R:
        """Hook after `Scheduler.run_batch`: measures the rate of prefills on a CPU."""
        if scheduler.device == "cpu":
            self._batch_ended(batch)
        else:
            self._on_gpu = scheduler
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

            tokens = req.origin_input_ids + req.output_ids
            key = RadixKey(
                tokens[: _cached_len(req)],
                req.extra_key,
                is_bigram=tree_cache.tree_core.is_eagle,
                cache_salt=req.cache_salt,
            )
            key = key.page_aligned(tree_cache.page_size)
            if len(key) == len(tokens):
                self._await_step()
            self._rank.finished(req.rid, key)

    def _await_step(self) -> None:
        """Lets copies to the host wait for the step under way, which computes the newest KV.

        SGLang's stream waits until that step has read what is shared, not until it has ended.
        """
        if self._on_gpu is not None:
            import torch

            device = torch.get_device_module(self._on_gpu.device)
            device.current_stream().wait_stream(self._on_gpu.forward_stream)

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


def _cached_len(req: SglReq) -> int:
    """Returns how many tokens of a finished request SGLang caches."""
    since_0_5_21: Any = getattr(req, "owned_kv_len", None)
    before: Any = getattr(req, "effective_kv_committed_len", None)
    return int((since_0_5_21 or before)())


def layout_of(host: SglHostPool, config: SglStorageConfig) -> KvLayout:
    """Returns the layout of this engine's KV. host: its host memory; config: of its backend."""
    # In host memory each FP8 format is `uint8`. That of SGLang 0.5.23 does not name its device's.
    device = getattr(host, "device_pool", host)
    return KvLayout(
        dtype=str(device.dtype),
        layout=str(host.layout),
        page_size=host.logical_page_size,
        tp_size=config.tp_size,
        pp_size=config.pp_size,
    )
