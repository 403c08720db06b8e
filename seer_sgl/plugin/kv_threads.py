"""SGLang's threads for the KV pool: a failed call costs one operation, a dead thread is reported.

SGLang catches nothing in these threads before 0.5.23. After an error in the thread of the reads,
every later read waits for ever, and so does its request. So the calls of the storage backend are
guarded (watched_store.py); an error of SGLang's own code still kills a thread.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from .hook import SCHEDULER, Hook
from .sglang_types import SglController, SglScheduler

logger = logging.getLogger(__name__)

# A call of the pool that takes longer will not return: a long write through a slow network takes
# minutes. Until then reads have their own, much shorter limit (kvpool/hicache.py).
STUCK_S = 300.0


class KvThreads:
    """What the threads do and have met: errors, calls under way, their end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0  # operations that ended with an error
        self._clock = clock
        self._ended: dict[str, str] = {}  # by name of a thread of the process: its error
        # Calls of the pool by name and thread: since when.
        self._under_way: dict[tuple[str, int], float] = {}

    def broken(self, controller: SglController) -> str | None:
        """Returns why the engine's KV pool does not work any more; None while it works.

        SGLang does not notice the end of its threads. It replaces and ends them in the thread that
        asks, never meanwhile.
        """
        for name, thread in _threads(controller).items():
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

    def calling(self, name: str) -> bool:
        """Returns whether a call of this name is under way in the current thread."""
        return (name, threading.get_ident()) in self._under_way

    def hooks(self) -> list[Hook]:
        return [
            Hook(
                f"{SCHEDULER}.is_fully_idle",
                self.idle,
                "around",
                "A read may outlast the request that it was for; SGLang then crashes when it "
                "empties its caches, because the thread does not stop.",
                "SGLang waits for the reads of ended requests before it empties its caches.",
            ),
        ]

    def watch(self) -> None:
        """Begins to remember the errors that kill threads of this process."""
        before = threading.excepthook

        def ended(error: threading.ExceptHookArgs) -> None:
            if error.thread is not None:
                self._ended[error.thread.name] = repr(error.exc_value)
            before(error)

        threading.excepthook = ended

    @contextlib.contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Marks a call of the pool as under way. `name`: of the thread that waits for it."""
        call = name, threading.get_ident()
        self._under_way[call] = self._clock()
        try:
            yield
        finally:
            del self._under_way[call]

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
    def guarded(self, name: str) -> Iterator[None]:
        """Logs an error of the block, a call of the pool, and continues behind it."""
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


def _threads(controller: SglController) -> dict[str, threading.Thread]:
    """Returns the threads that must run, by the name of their work."""
    if controller.storage_stop_event.is_set():
        return {}
    return {
        "lookup": controller.prefetch_thread,
        "read": controller.prefetch_io_aux_thread,
        "sync": controller.prefetch_sync_thread,
        "write": controller.backup_thread,
    }
