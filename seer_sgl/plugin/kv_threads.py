"""SGLang's threads for the KV pool: an error costs one operation, and a dead thread is reported.

Stock SGLang catches nothing in these threads. After an error in the thread of the reads, every
later read waits for ever, and so does its request.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from .hook import CONTROLLER, HYBRID, SCHEDULER, Hook
from .sglang_types import (
    SglController,
    SglPrefetchAck,
    SglPrefetchOperation,
    SglScheduler,
    SglStorageOperation,
)

logger = logging.getLogger(__name__)

# A call of the pool that takes longer will not return: a long write through a slow network takes
# minutes. Until then reads have their own, much shorter limit (kvpool/hicache.py).
STUCK_S = 300.0


class KvThreads:
    """The hooks around the work of the threads, and what they have seen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0  # operations that ended with an error
        self._clock = clock
        self._controller: SglController | None = None
        self._ended: dict[str, str] = {}  # by name of a thread of the process: its error
        # Calls of the pool by name and thread: since when.
        self._under_way: dict[tuple[str, int], float] = {}

    @property
    def broken(self) -> str | None:
        """Why the engine's KV pool does not work any more; None while it works."""
        for name, thread in self._threads().items():
            if not thread.is_alive():
                return f"the KV thread `{name}` ended: {self._ended.get(thread.name, 'no error')}"
        now = self._clock()
        for (name, _), since in list(self._under_way.items()):
            if now - since > STUCK_S:
                return f"the KV thread `{name}` has waited for the pool for {now - since:.0f} s"
        return None

    @property
    def reading(self) -> bool:
        """Whether a lookup or a read is under way, perhaps for a request that waits no more."""
        return any(name in ("lookup", "read") for name, _ in list(self._under_way))

    def hooks(self) -> list[Hook]:
        """Returns the hooks of this part."""
        error = "An error of the storage backend would end SGLang's thread"
        return [
            Hook(
                f"{HYBRID}._storage_hit_query",
                self.look_up,
                "around",
                f"{error} that looks pages up; it is a miss instead.",
                "SGLang 0.5.23 survives such an error; older versions are no longer supported.",
            ),
            Hook(
                f"{CONTROLLER}._page_transfer_kv_batch",
                self.read,
                "around",
                f"{error} that reads pages; it is a miss instead.",
                "SGLang 0.5.23 survives such an error; older versions are no longer supported.",
            ),
            Hook(
                f"{HYBRID}._page_transfer_sidecar",
                self.read_sidecars,
                "around",
                f"{error} that reads pages; the layers with a cache of their own miss instead.",
                "SGLang 0.5.23 survives such an error; older versions are no longer supported.",
            ),
            Hook(
                f"{HYBRID}._reduce_prefetch_ack",
                self.agree,
                "around",
                "An error would end SGLang's thread that collects the progress of reads; with one "
                "rank, the progress counts as none instead.",
                "SGLang 0.5.23 survives such an error; older versions are no longer supported.",
            ),
            Hook(
                f"{SCHEDULER}.is_fully_idle",
                self.idle,
                "around",
                "A read may outlast the request that it was for; SGLang then ends the engine when "
                "it empties its caches, because the thread does not stop.",
                "SGLang waits for the reads of ended requests before it empties its caches.",
            ),
        ]

    def watch(self, controller: SglController) -> None:
        """Begins to look whether the threads of a controller run: SGLang does not notice their end.

        SGLang replaces and ends them in the thread that asks for `broken`, never meanwhile.
        """
        self._controller = controller
        before = threading.excepthook

        def ended(error: threading.ExceptHookArgs) -> None:
            if error.thread is not None:
                self._ended[error.thread.name] = repr(error.exc_value)
            before(error)

        threading.excepthook = ended

    def _threads(self) -> dict[str, threading.Thread]:
        """Returns the threads that must run, by the name of their work."""
        controller = self._controller
        if controller is None or controller.storage_stop_event.is_set():
            return {}
        return {
            "lookup": controller.prefetch_thread,
            "read": controller.prefetch_io_aux_thread,
            "sync": controller.prefetch_sync_thread,
            "write": controller.backup_thread,
        }

    @contextlib.contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Marks a call of the pool as under way. `name`: of the thread that waits for it."""
        call = name, threading.get_ident()
        self._under_way[call] = self._clock()
        try:
            yield
        finally:
            del self._under_way[call]

    def look_up(
        self,
        stock: Callable[..., tuple[list[str], int]],
        controller: SglController,
        operation: SglPrefetchOperation,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[str], int]:
        """Hook around `_storage_hit_query`: returns the page names found, and their tokens."""
        with self._guarded("lookup"):
            return stock(controller, operation, *args, **kwargs)
        return [], 0

    def read(
        self,
        stock: Callable[..., int],
        controller: SglController,
        operation: SglPrefetchOperation,
        *args: Any,
        **kwargs: Any,
    ) -> int:
        """Hook around `_page_transfer_kv_batch`: returns the number of pages read."""
        with self._guarded("read"):
            return stock(controller, operation, *args, **kwargs)
        return 0

    def read_sidecars(
        self,
        stock: Callable[..., None],
        controller: SglController,
        operation: SglPrefetchOperation,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Hook around `_page_transfer_sidecar`: reports a miss of all if SGLang could not report.

        The ranks of an engine must report equally often.
        """
        with self._guarded("read"):
            stock(controller, operation, *args, **kwargs)
            return
        from sglang.srt.managers.cache_controller import PrefetchAck

        controller.prefetch_sync_queue.put(
            PrefetchAck(rid=operation.request_id, operation=operation, pool_hits={})
        )

    def write(
        self,
        stock: Callable[..., None],
        controller: SglController,
        operation: SglStorageOperation,
    ) -> None:
        """Part of the hook around `_page_backup`: what was written before an error stays."""
        with self._guarded("write"):
            stock(controller, operation)

    def agree(
        self, stock: Callable[..., None], controller: SglController, ack: SglPrefetchAck
    ) -> None:
        """Hook around `_reduce_prefetch_ack`. Ranks that disagree would use different KV, so with
        several ranks the error ends the thread."""
        if controller.prefetch_completion_sync_groups:
            stock(controller, ack)
            return
        with self._guarded("sync"):
            stock(controller, ack)
            return
        ack.completed_tokens = ack.pool_hits = None

    def idle(
        self, stock: Callable[..., bool], scheduler: SglScheduler, *args: Any, **kwargs: Any
    ) -> bool:
        """Hook around `Scheduler.is_fully_idle`: False while an engine of one rank reads from the
        pool. Ranks that disagree would not empty their caches together."""
        ranks = scheduler.server_args.tp_size * scheduler.server_args.pp_size
        if self.reading and ranks == 1 and not kwargs.get("for_health_check"):
            return False
        return stock(scheduler, *args, **kwargs)

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Logs an error of the block and continues behind it."""
        try:
            with self.waiting(name):
                yield
        except Exception as error:
            self.failures += 1
            if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, ...
                logger.exception(
                    "seer-sgl: KV pool: `%s` failed (%d failures so far): %r",
                    name,
                    self.failures,
                    error,
                )
