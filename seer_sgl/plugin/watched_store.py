"""The storage backend of HiCache under SGLang's threads: errors are misses, reads are timed."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .kv_threads import KvThreads
from .sglang_types import SglPoolTransfer

Count = Callable[[Any], int]


class Watch(NamedTuple):
    """The receivers of the events of a backend's calls, in SGLang's threads."""

    threads: KvThreads
    written: Callable[[str], None]  # the last page of a write, even of a failed one
    read: Callable[[int, float], None]  # pages of KV, and seconds

    def call(
        self, thread: str, missed: Any, own: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Returns the answer of a backend's own method, `missed` after an error."""
        if self.threads.calling(thread):  # from another of its methods
            return own(*args, **kwargs)
        with self.threads.guarded(thread):
            return own(*args, **kwargs)
        return missed

    def timed(self, count: Count, keys: Sequence[str], own: Callable[..., Any]) -> Any:
        """Returns the method of a backend that reads `keys`, timed. count: the pages in its answer.

        It raises ValueError for an answer of another length, which SGLang would not survive.
        """
        if self.threads.calling("read"):
            return own

        def read(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            answer = own(*args, **kwargs)
            if answer is not None and len(answer) != len(keys):
                raise ValueError(f"an answer of {len(answer)} pages to {len(keys)}")
            self.read(0 if answer is None else count(answer), time.monotonic() - began)
            return answer

        return read

    def ended(self, keys: Sequence[str]) -> None:
        """Passes on the end of a write, unless it is a part of another."""
        if keys and not self.threads.calling("write"):
            self.written(keys[-1])


def watched(stock: type[Any], watch: Watch) -> type[Any]:
    """Returns the class of a storage backend, derived so that its calls are watched.

    SGLang catches no error in its threads before 0.5.23. `seer_stored` is for other threads.
    """

    class Watched(stock):  # type: ignore[misc]
        """Replaces sglang.srt.mem_cache.hicache_storage.HiCacheStorage for SGLang's threads."""

        def seer_stored(self, keys: list[str]) -> int:
            """Returns how many of the pages are there, from the first. Raises what it raises."""
            return int(super().batch_exists(keys))

        def batch_exists(self, keys: list[str], *args: Any, **kwargs: Any) -> Any:
            return watch.call("lookup", 0, super().batch_exists, keys, *args, **kwargs)

        def batch_exists_v2(self, keys: list[str], *args: Any, **kwargs: Any) -> Any:
            from sglang.srt.mem_cache.hicache_storage import PoolTransferResult

            missed = PoolTransferResult.empty()
            return watch.call("lookup", missed, super().batch_exists_v2, keys, *args, **kwargs)

        def batch_get_v1(self, keys: list[str], *args: Any, **kwargs: Any) -> Any:
            own = watch.timed(lambda found: sum(map(bool, found)), keys, super().batch_get_v1)
            missed = [False] * len(keys)
            return watch.call("read", missed, own, keys, *args, **kwargs) or missed

        def batch_get(self, keys: list[str], *args: Any, **kwargs: Any) -> Any:
            own = watch.timed(
                lambda found: sum(page is not None for page in found), keys, super().batch_get
            )
            return watch.call("read", None, own, keys, *args, **kwargs)

        def batch_get_v2(
            self, transfers: Sequence[SglPoolTransfer], *args: Any, **kwargs: Any
        ) -> Any:
            missed = _missed(transfers)
            return watch.call("read", missed, super().batch_get_v2, transfers, *args, **kwargs)

        def batch_set_v1(self, keys: list[str], *args: Any, **kwargs: Any) -> Any:
            missed = [False] * len(keys)
            try:
                return watch.call("write", missed, super().batch_set_v1, keys, *args, **kwargs)
            finally:
                watch.ended(keys)

        def batch_set(self, keys: list[str], *args: Any, **kwargs: Any) -> Any:
            try:
                return watch.call("write", False, super().batch_set, keys, *args, **kwargs)
            finally:
                watch.ended(keys)

        def batch_set_v2(
            self, transfers: Sequence[SglPoolTransfer], *args: Any, **kwargs: Any
        ) -> Any:
            missed = _missed(transfers)
            return watch.call("write", missed, super().batch_set_v2, transfers, *args, **kwargs)

    # SGLang returns the name of the class to clients (`cached_tokens_details`).
    Watched.__name__, Watched.__qualname__ = stock.__name__, stock.__qualname__
    return Watched


def _missed(transfers: Sequence[SglPoolTransfer]) -> dict[Any, list[bool]]:
    """Returns the result of transfers none of whose pages was moved."""
    return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}
