"""The KV pool on one rank: acknowledgements to the driver, and release of pages.

SGLang answers a request before its KV is in the pool and does not report the end of the write. The
rank queries the storage backend itself, as soon as the last page was written.
"""

import logging
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from seer_sgl.kvpool.namespace import KvLayout
from seer_sgl.link import messages
from seer_sgl.link.client import Link, driver_link
from seer_sgl.timing import DEFAULT, Timing

from .kv_threads import KvThreads
from .sglang_types import SglFileStore, SglMooncakeStore, SglStorageConfig, SglWatchedStore

logger = logging.getLogger(__name__)
MAX_PAGES = 1_000_000  # names kept for the release of pages, about 100 bytes each
LEASED = -706  # Mooncake's OBJECT_HAS_LEASE: it was looked up or read less than 10 s ago


class Chain:
    """The pages of one finished call, by name."""

    def __init__(self, rid: str, key: Any) -> None:
        self.rid = rid
        self.uid = rid.rpartition(".")[0]  # of the request
        self.key = key  # SGLang's RadixKey: tokens and namespace
        self.pages: list[str] = []
        self.check_at = 0.0
        self.patience = 0.0


class PageNames:
    """The page names of requests, newest last; beyond `max_pages` the oldest are dropped."""

    def __init__(self, max_pages: int) -> None:
        self._max_pages = max_pages
        self._count = 0
        self._pages: OrderedDict[str, list[str]] = OrderedDict()

    def put(self, uid: str, pages: list[str]) -> None:
        """Stores the pages of a request, from its beginning."""
        self.take(uid, 0)
        self._pages[uid] = pages
        self._count += len(pages)
        while self._count > self._max_pages and len(self._pages) > 1:
            self._count -= len(self._pages.popitem(last=False)[1])

    def take(self, uid: str, keep: int) -> list[str]:
        """Removes and returns the pages beyond the first `keep`."""
        pages = self._pages.pop(uid, [])
        self._count -= len(pages) - len(pages[:keep])
        if pages[:keep]:
            self._pages[uid] = pages[:keep]
        return pages[keep:]


class PoolRank:
    """The pool on one rank. Threads of SGLang may call the methods marked `Any thread`.

    kv_bytes_per_token: of this rank.
    """

    def __init__(
        self,
        store: SglWatchedStore,
        config: SglStorageConfig,
        layout: KvLayout,
        kv_bytes_per_token: int,
        threads: KvThreads | None = None,
        *,
        timing: Timing = DEFAULT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timing = timing
        self._clock = clock
        self.layout = layout
        self._store = store
        self._config = config
        self._bytes_per_token = kv_bytes_per_token
        self._threads = threads or KvThreads()
        self._page_size = layout.page_size
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._awaited: dict[str, Chain] = {}  # by rid
        self._by_last_page: dict[str, Chain] = {}
        self._names = PageNames(MAX_PAGES)
        self._forgotten: dict[str, int] = {}  # uid -> tokens to keep, once its writes are over
        # Pages that had a lease, and when it has ended; the earliest first.
        self._leased: deque[tuple[float, list[str]]] = deque()
        self._rates = messages.Rates(0, 0.0, 0, 0.0)
        self._rates_sent_at = self._clock()
        self._link = self._join()
        threading.Thread(target=self._run, name="seer-sgl pool", daemon=True).start()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the KV of one token, in all ranks together."""
        return self._bytes_per_token * self._config.tp_size * self._config.pp_size

    def finished(self, rid: str, key: Any) -> None:
        """Registers a finished call; SGLang now writes its KV, under `key`. Any thread."""
        self._events.put(Chain(rid, key))

    def written(self, last_page: str) -> None:
        """Requests a check of the call whose last page was written, or failed to be. Any thread."""
        self._events.put(last_page)

    def measured(self, rates: messages.Rates) -> None:
        """Adds the tokens and seconds of a prefill or a fetch. Any thread."""
        self._events.put(rates)

    def _join(self) -> Link | None:
        config = self._config
        ranks = config.tp_size * config.pp_size
        rank = config.pp_rank * config.tp_size + config.tp_rank
        link = driver_link(rank, ranks)
        if link is not None:
            link.on(messages.Forget, self._events.put)
        return link

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=self._longest_wait_s())
            except queue.Empty:
                event = None
            try:
                self._take(event)
            except Exception:
                # The pool is optional: no error in it may stop the acknowledgements.
                logger.exception("seer-sgl: KV pool bookkeeping failed")

    def _longest_wait_s(self) -> float | None:
        """Returns the seconds until something is due without an event; None if nothing is."""
        if self._awaited:
            return self._timing.pool_first_check_s
        return max(0.0, self._leased[0][0] - self._clock()) if self._leased else None

    def _take(self, event: Any) -> None:
        if isinstance(event, Chain):
            self._expect(event)
        elif isinstance(event, messages.Forget):
            self._forget(event.uid, event.keep)
        elif isinstance(event, messages.Rates):
            self._send_rates(event)
        elif event in self._by_last_page:
            self._check(self._by_last_page[event])
        now = self._clock()
        for chain in [chain for chain in self._awaited.values() if chain.check_at <= now]:
            self._check(chain)
        while self._leased and self._leased[0][0] <= now:
            # Pages with a new lease are of another request too, which releases them in its turn.
            self._remove(self._leased.popleft()[1])

    def _send_rates(self, rates: messages.Rates) -> None:
        before, now = msgspec.structs.astuple(self._rates), self._clock()
        added = zip(before, msgspec.structs.astuple(rates), strict=True)
        self._rates = messages.Rates(*(old + new for old, new in added))
        if self._link is not None and now - self._rates_sent_at >= self._timing.pool_rates_s:
            self._link.send(self._rates)
            self._rates, self._rates_sent_at = messages.Rates(0, 0.0, 0, 0.0), now

    def _expect(self, chain: Chain) -> None:
        from sglang.srt.mem_cache.utils import get_storage_hash_str

        chain.pages = list(get_storage_hash_str(chain.key, None, page_size=self._page_size))
        chain.patience = self._timing.pool_first_check_s
        chain.check_at = self._clock() + chain.patience
        if not chain.pages:
            return
        chain.key = None
        self._names.put(chain.uid, chain.pages)
        self._awaited[chain.rid] = chain
        self._by_last_page[chain.pages[-1]] = chain

    def _check(self, chain: Chain) -> None:
        """Sends the acknowledgement if all pages are stored, or if the longest wait is over."""
        try:
            with self._threads.waiting("acknowledgement"):
                stored = self._store.seer_stored(chain.pages)
        except Exception:  # any error of a storage backend whose servers are down
            stored = 0
        complete = stored == len(chain.pages)
        if not complete and chain.patience < self._timing.pool_longest_wait_s:
            chain.patience *= 2
            chain.check_at = self._clock() + chain.patience
            return
        del self._awaited[chain.rid]
        if self._by_last_page.get(chain.pages[-1]) is chain:
            del self._by_last_page[chain.pages[-1]]
        if self._link is not None:
            self._link.send(messages.KvStored(chain.rid, complete))
        if chain.uid in self._forgotten:
            self._forget(chain.uid, self._forgotten.pop(chain.uid))

    def _forget(self, uid: str, keep: int) -> None:
        """Removes the pages of a request beyond its first `keep` tokens."""
        if any(chain.uid == uid for chain in self._awaited.values()):
            self._forgotten[uid] = keep  # pages that are still being written would stay
            return
        leased = self._remove(self._names.take(uid, keep // self._page_size))
        if leased:
            self._leased.append((self._clock() + self._timing.pool_lease_s, leased))

    def _remove(self, pages: list[str]) -> list[str]:
        """Removes pages, and returns those that stay because of a lease."""
        with self._threads.waiting("release"):
            return remove_pages(self._store, pages)


def remove_pages(backend: object, pages: list[str]) -> list[str]:
    """Removes pages from the pool. backend: SGLang's storage.

    Returns the pages that stay because Mooncake has given a lease on them. A forced removal frees
    their memory at once: a read that is under way would get the bytes of the next page written
    there, without an error. A file can be removed while it is read.
    """
    if not pages:
        return []
    if hasattr(backend, "store"):
        mooncake = cast(SglMooncakeStore, backend)
        keys = mooncake._tag_keys(pages)
        if mooncake.is_mla_backend:
            names = [f"{key}_{mooncake.mla_suffix}_k" for key in keys]
        else:
            suffixes = mooncake.mha_suffix
            ranks = suffixes if isinstance(suffixes, list) else [suffixes]
            names = [f"{key}_{rank}_{part}" for key in keys for rank in ranks for part in "kv"]
        statuses = mooncake.store.batch_remove(names)
        parts = len(names) // len(pages)
        return [
            page
            for number, page in enumerate(pages)
            if LEASED in statuses[number * parts : (number + 1) * parts]
        ]
    if hasattr(backend, "file_path"):
        files = cast(SglFileStore, backend)
        for page in pages:
            path = Path(files.file_path) / f"{files._get_suffixed_key(page)}.bin"
            path.unlink(missing_ok=True)
    return []
