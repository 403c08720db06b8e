"""HiCache in a pool that engines share: names that cannot collide, acknowledgements, release.

Inside SGLang's scheduler process, one `Member` a rank once a storage backend is attached. SGLang
answers a request before its KV is in the pool and never says when it is: the member asks the
storage backend itself, as soon as the last page was written, and tells the driver.
"""

import logging
import os
import queue
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seer_sgl.kvpool.hicache import NAMESPACE, REPLICAS
from seer_sgl.kvpool.namespace import Layout, WeightsName, model_fingerprint

from . import frames
from .link import Link

logger = logging.getLogger(__name__)
INSTANCE = "SEER_SGL_INSTANCE"  # environment variable: a name for this server, given by itself
FIRST_CHECK_S = 0.05
BUSY_POLL_S = 0.001
GIVE_UP_S = 5.0  # after which what is there is all that will be
MAX_CHAINS = 20_000  # finished calls whose page names are remembered for their release

_CONTROLLER = "sglang.srt.managers.cache_controller.HiCacheController"
_HYBRID = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_MOONCAKE = "sglang.srt.mem_cache.storage.mooncake_store.mooncake_store.MooncakeStore"
_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"


def hooks() -> list[tuple[str, Callable[..., Any], str]]:
    """The hooks as (SGLang target, function, kind of hook)."""
    return [
        (f"{_CONTROLLER}._generate_storage_config", name_the_layout, "after"),
        (f"{_HYBRID}.attach_storage_backend", join, "after"),
        (f"{_HYBRID}._page_backup", page_written, "after"),
        (f"{_TREE}.insert_req", call_finished, "after"),
        (f"{_SCHEDULER}.handle_generate_request", name_the_weights, "before"),
        (f"{_SCHEDULER}.handle_update_weight_version", version_named, "after"),
        (f"{_SCHEDULER}.maybe_sleep_on_idle", keep_awake, "around"),
        (f"{_UPDATER}.record_weight_version_after_update", weights_updated, "after"),
        (f"{_MOONCAKE}._put_batch_zero_copy_impl", put_replicas, "around"),
    ]


class Chain:
    """The pages of one finished call, by name."""

    def __init__(self, rid: str, key: Any) -> None:
        self.rid = rid
        self.key = key  # SGLang's RadixKey: tokens and namespace
        self.pages: list[str] = []
        self.began = time.monotonic()
        self.check_at = self.began
        self.patience = FIRST_CHECK_S


class Member:
    """This rank's part in the pool. Everything but `finished` and `written` is its own thread's."""

    def __init__(self, controller: Any, layout: Layout) -> None:
        self.layout = layout
        self._controller = controller
        self._page_size = controller.page_size
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._awaited: dict[str, Chain] = {}  # by rid
        self._by_last_page: dict[str, Chain] = {}
        self._finished: OrderedDict[str, Chain] = OrderedDict()  # by request uid, newest last
        self._forgotten: dict[str, int] = {}  # uid -> tokens to keep, once its writes are over
        self._link = self._connect()
        threading.Thread(target=self._run, name="seer-sgl pool", daemon=True).start()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of this rank's KV of one token."""
        return int(self._controller.mem_pool_host.size_per_token)

    def finished(self, rid: str, key: Any) -> None:
        """SGLang is done with a call whose KV is that of `key`; it will be written now."""
        self._events.put(Chain(rid, key))

    def written(self, last_page: str) -> None:
        """SGLang's backup thread has put a run of pages, or failed to."""
        self._events.put(last_page)

    def _connect(self) -> Link | None:
        url, token = os.environ.get(frames.LINK_URL), os.environ.get(frames.LINK_TOKEN)
        if url is None or token is None:
            return None
        ranks = self._controller.tp_size * self._controller.pp_size
        rank = self._controller.pp_rank * self._controller.tp_size + self._controller.tp_rank
        hello = frames.Hello(frames.PROTOCOL, os.environ.get(INSTANCE, ""), rank, ranks)
        return Link(url, token, hello, self._events.put)

    def _run(self) -> None:
        while True:
            wait = FIRST_CHECK_S if self._awaited else None
            try:
                event = self._events.get(timeout=wait)
            except queue.Empty:
                event = None
            try:
                self._take(event)
            except Exception:
                # The pool is an aid: whatever goes wrong with it must not end the acknowledgements.
                logger.exception("seer-sgl: KV pool bookkeeping failed")

    def _take(self, event: Any) -> None:
        if isinstance(event, Chain):
            self._expect(event)
        elif isinstance(event, frames.Forget):
            self._forget(event.uid, event.keep)
        elif event in self._by_last_page:
            self._check(self._by_last_page[event])
        now = time.monotonic()
        for chain in [chain for chain in self._awaited.values() if chain.check_at <= now]:
            self._check(chain)

    def _expect(self, chain: Chain) -> None:
        from sglang.srt.mem_cache.utils import get_storage_hash_str

        chain.pages = list(get_storage_hash_str(chain.key, None, page_size=self._page_size))
        chain.check_at = chain.began + chain.patience
        if not chain.pages:
            return
        uid = chain.rid.rpartition(".")[0]
        self._finished[uid] = chain
        self._finished.move_to_end(uid)
        if len(self._finished) > MAX_CHAINS:
            self._finished.popitem(last=False)
        self._awaited[chain.rid] = chain
        self._by_last_page[chain.pages[-1]] = chain

    def _check(self, chain: Chain) -> None:
        """Tell the driver once all is there, or once it will not get more."""
        there = self._controller.storage_backend.batch_exists(chain.pages)
        age = time.monotonic() - chain.began
        whole = there == len(chain.pages)
        if not whole and age < GIVE_UP_S:
            chain.patience *= 2
            chain.check_at = chain.began + chain.patience
            return
        del self._awaited[chain.rid]
        if self._by_last_page.get(chain.pages[-1]) is chain:
            del self._by_last_page[chain.pages[-1]]
        if self._link is not None:
            self._link.send(frames.Stored(chain.rid, there * self._page_size, whole))
        uid = chain.rid.rpartition(".")[0]
        if uid in self._forgotten:
            self._forget(uid, self._forgotten.pop(uid))

    def _forget(self, uid: str, keep: int) -> None:
        """Remove the pages of a request beyond its first `keep` tokens."""
        chain = self._finished.get(uid)
        if chain is None:
            return
        if chain.rid in self._awaited:
            self._forgotten[uid] = keep
            return
        if not keep:
            del self._finished[uid]
        remove_pages(self._controller.storage_backend, chain.pages[keep // self._page_size :])


def remove_pages(backend: Any, pages: list[str]) -> None:
    """Take pages out of the pool, whoever may have looked at them lately."""
    if not pages:
        return
    if hasattr(backend, "store"):  # Mooncake
        keys = backend._tag_keys(pages)
        if backend.is_mla_backend:
            names = [f"{key}_{backend.mla_suffix}_k" for key in keys]
        else:
            suffixes = backend.mha_suffix
            ranks = suffixes if isinstance(suffixes, list) else [suffixes]
            names = [f"{key}_{rank}_{part}" for key in keys for rank in ranks for part in "kv"]
        backend.store.batch_remove(names, True)
    elif hasattr(backend, "file_path"):
        for page in pages:
            path = Path(backend.file_path) / f"{backend._get_suffixed_key(page)}.bin"
            path.unlink(missing_ok=True)


_member: Member | None = None
_weights: WeightsName | None = None


def facts() -> dict[str, Any] | None:
    """What the plugin says of the pool in `/server_info`; None without one."""
    if _member is None:
        return None
    return {
        "namespace": _member.layout.tag(os.environ.get(NAMESPACE, "")),
        "kv_bytes_per_token": _member.kv_bytes_per_token,
        "linked": _member._link is not None,
    }


def _layout_of(controller: Any) -> Layout:
    from sglang.srt.runtime_context import get_server_args

    host = controller.mem_pool_host
    return Layout(
        model=model_fingerprint(get_server_args().model_path),
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
    global _member, _weights  # noqa: PLW0603 (one scheduler a process)
    from sglang.srt.runtime_context import get_serving

    _weights = WeightsName(get_serving().weight_version, uuid.uuid4().hex)
    _member = Member(self, _layout_of(self))
    return result


def page_written(result: Any, self: Any, operation: Any) -> Any:
    """After `HybridCacheController._page_backup`."""
    if _member is not None and operation.hash_value:
        _member.written(operation.hash_value[-1])
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


def name_the_weights(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before `Scheduler.handle_generate_request`: KV is found again under the same weights only."""
    if _weights is not None:
        call = kwargs["recv_req"] if "recv_req" in kwargs else args[1]
        call.extra_key = f"{_weights.current}|{call.extra_key or ''}"
    return args, kwargs


def weights_updated(result: Any, self: Any, weight_version: str | None) -> Any:
    """After `SchedulerWeightUpdaterManager.record_weight_version_after_update`."""
    _rename(self.scheduler, weight_version)
    return result


def version_named(result: Any, self: Any, recv_req: Any) -> Any:
    """After `Scheduler.handle_update_weight_version`: the trainer tells the name of the weights."""
    _rename(self, recv_req.new_version)
    return result


def _rename(scheduler: Any, version: str | None) -> None:
    """Requests that have not started yet must not read KV of the old weights either."""
    if _weights is None:
        return
    old = f"{_weights.current}|"
    _weights.updated(version)
    for req in scheduler.waiting_queue:
        if req.extra_key and req.extra_key.startswith(old):
            req.extra_key = f"{_weights.current}|{req.extra_key.removeprefix(old)}"


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
