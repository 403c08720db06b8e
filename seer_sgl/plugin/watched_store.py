"""The storage backend of HiCache under SGLang's threads: errors are misses, reads are timed."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .kv_threads import KvThreads
from .sglang_types import SglPoolTransfer


class Watch(NamedTuple):
    """What is told of a backend's calls, in SGLang's threads."""

    threads: KvThreads
    written: Callable[[str], None]  # the last page of a write, even of a failed one
    read: Callable[[int, float], None]  # pages of KV, and seconds


def watched(stock: type[Any], watch: Watch) -> type[Any]:
    """Returns the class of a storage backend, derived so that its calls are watched.

    SGLang catches no error in its threads before 0.5.23. `seer_stored` is for other threads.
    """

    class Watched(stock):  # type: ignore[misc]
        """Replaces sglang.srt.mem_cache.hicache_storage.HiCacheStorage for SGLang's threads."""

        def seer_stored(self, keys: list[str]) -> int:
            """Returns how many of the pages are there, from the first. Raises what it raises."""
            return int(super().batch_exists(keys))

        def batch_exists(self, keys: list[str], *args: Any, **kwargs: Any) -> int:
            with watch.threads.guarded("lookup"):
                return int(super().batch_exists(keys, *args, **kwargs))
            return 0

        def batch_exists_v2(self, keys: list[str], *args: Any, **kwargs: Any) -> Any:
            from sglang.srt.mem_cache.hicache_storage import PoolTransferResult

            with watch.threads.guarded("lookup"):
                return super().batch_exists_v2(keys, *args, **kwargs)
            return PoolTransferResult.empty()

        def batch_get_v1(self, keys: list[str], *args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            with watch.threads.guarded("read"):
                found = super().batch_get_v1(keys, *args, **kwargs)
                watch.read(sum(map(bool, found)), time.monotonic() - began)
                return found
            return [False] * len(keys)

        def batch_get(self, keys: list[str], *args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            with watch.threads.guarded("read"):
                found = super().batch_get(keys, *args, **kwargs)
                pages = sum(page is not None for page in found or ())
                watch.read(pages, time.monotonic() - began)
                return found
            return None

        def batch_get_v2(
            self, transfers: Sequence[SglPoolTransfer], *args: Any, **kwargs: Any
        ) -> Any:
            with watch.threads.guarded("read"):
                return super().batch_get_v2(transfers, *args, **kwargs)
            return _missed(transfers)

        def batch_set_v1(self, keys: list[str], *args: Any, **kwargs: Any) -> Any:
            try:
                with watch.threads.guarded("write"):
                    return super().batch_set_v1(keys, *args, **kwargs)
                return [False] * len(keys)
            finally:
                watch.written(keys[-1])

        def batch_set(self, keys: list[str], *args: Any, **kwargs: Any) -> bool:
            try:
                with watch.threads.guarded("write"):
                    return bool(super().batch_set(keys, *args, **kwargs))
                return False
            finally:
                watch.written(keys[-1])

        def batch_set_v2(
            self, transfers: Sequence[SglPoolTransfer], *args: Any, **kwargs: Any
        ) -> Any:
            with watch.threads.guarded("write"):
                return super().batch_set_v2(transfers, *args, **kwargs)
            return _missed(transfers)

    return Watched


def _missed(transfers: Sequence[SglPoolTransfer]) -> dict[Any, list[bool]]:
    """Returns the result of transfers none of whose pages was moved."""
    return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}
