"""The calls of a storage backend under SGLang's threads: errors are misses, and reads are timed."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.plugin import watched_store
from seer_sgl.plugin.kv_threads import KvThreads
from seer_sgl.plugin.watched_store import Watch, watched

from .stand_ins import replace_module

KEYS = ["a", "b", "c"]
SIDECAR: Any = SimpleNamespace(name="mamba", keys=["c"])


class Store:
    """A storage backend of SGLang that has the first two pages, or is away."""

    def __init__(self) -> None:
        self.away = False
        self.asked: list[Any] = []

    def _answer(self, answer: Any, *asked: Any) -> Any:
        if self.away:
            raise OSError("the store is gone")
        self.asked.append(asked)
        return answer

    def batch_exists(self, keys: list[str], extra: Any = None) -> Any:
        return self._answer(2, keys, extra)

    def batch_exists_v2(self, keys: list[str], pools: Any = None, extra: Any = None) -> Any:
        return self._answer(("hits", self.batch_exists(keys)), pools, extra)

    def batch_get_v1(self, keys: list[str], indices: Any, extra: Any = None) -> Any:
        return self._answer([True, True, False], keys, indices, extra)

    def batch_get(self, keys: list[str], places: Any) -> Any:
        return self._answer(["A", "B", None], keys, places)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> Any:
        return self._answer({"mamba": [True]}, transfers, extra_info)

    def batch_set_v1(self, keys: list[str], indices: Any, extra: Any = None) -> Any:
        return self._answer([True, True, True], keys, indices, extra)

    def batch_set(self, keys: list[str], values: Any) -> Any:
        return self._answer(True, keys, values)

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> Any:
        return self._answer({"mamba": [True]}, transfers, extra_info)


class Seen:
    """What a watched store tells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        none = SimpleNamespace(empty=lambda: "no hits")
        name = "sglang.srt.mem_cache.hicache_storage"
        replace_module(monkeypatch, name, PoolTransferResult=none)
        clock = SimpleNamespace(monotonic=itertools.count().__next__)
        monkeypatch.setattr(watched_store, "time", clock)
        self.threads = KvThreads()
        self.written: list[str] = []
        self.read: list[tuple[int, float]] = []
        kind = watched(Store, Watch(self.threads, self.written.append, self._read))
        self.store: Any = kind()

    def _read(self, pages: int, seconds: float) -> None:
        self.read.append((pages, seconds))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


CALLS = [
    ("batch_exists", (KEYS, "extra"), {}, 2, 0),
    ("batch_exists_v2", (KEYS, "pools"), {"extra": "e"}, ("hits", 2), "no hits"),
    ("batch_get_v1", (KEYS, "indices"), {"extra": "e"}, [True, True, False], [False] * 3),
    ("batch_get", (KEYS, "places"), {}, ["A", "B", None], None),
    ("batch_get_v2", ([SIDECAR],), {"extra_info": "e"}, {"mamba": [True]}, {"mamba": [False]}),
    ("batch_set_v1", (KEYS, "indices"), {}, [True] * 3, [False] * 3),
    ("batch_set", (KEYS, "values"), {}, True, False),
    ("batch_set_v2", ([SIDECAR],), {}, {"mamba": [True]}, {"mamba": [False]}),
]


@pytest.mark.parametrize(("call", "args", "named", "answer", "missed"), CALLS)
def test_a_call_is_the_backends_own_and_an_error_a_miss(  # noqa: PLR0917
    seen: Seen, call: str, args: Any, named: Any, answer: Any, missed: Any
) -> None:
    assert getattr(seen.store, call)(*args, **named) == answer
    assert seen.threads.failures == 0
    passed = [arg for arg in (*args, *named.values()) if arg is not KEYS]
    assert all(arg in seen.store.asked[-1] for arg in passed)
    seen.store.away = True
    assert getattr(seen.store, call)(*args, **named) == missed
    assert seen.threads.failures == 1
    assert not seen.threads.reading


def test_reads_are_timed_by_their_pages_and_writes_tell_their_last_page(seen: Seen) -> None:
    for call, args, named, *_ in CALLS:
        getattr(seen.store, call)(*args, **named)
    assert seen.read == [(2, 1), (2, 1)]
    assert seen.written == ["c", "c"]
    seen.store.batch_set([], "values")
    assert seen.written == ["c", "c"], "a write of nothing tells nothing"
    seen.store.away = True
    for call, args, named, *_ in CALLS:
        getattr(seen.store, call)(*args, **named)
    assert seen.read == [(2, 1), (2, 1)]
    assert seen.written == ["c"] * 4


class Nested(Store):
    """A backend one of whose calls is made of another, as SGLang's EIC backend."""

    def batch_set_v1(self, keys: list[str], indices: Any, extra: Any = None) -> Any:
        return self.batch_set(keys, indices)

    def batch_set(self, keys: list[str], values: Any) -> Any:
        return self._answer([True, False, True])

    def batch_get_v1(self, keys: list[str], indices: Any, extra: Any = None) -> Any:
        return [page is not None for page in self.batch_get(keys, indices)]


def test_a_call_within_a_call_is_the_backends_own(seen: Seen) -> None:
    watch = Watch(seen.threads, seen.written.append, seen._read)
    store: Any = watched(Nested, watch)()
    assert store.batch_set_v1(KEYS, "indices") == [True, False, True]
    assert store.batch_get_v1(KEYS, "indices") == [True, True, False]
    assert (seen.written, seen.read) == (["c"], [(2, 1)])
    store.away = True
    assert store.batch_set_v1(KEYS, "indices") == [False] * 3
    assert seen.threads.failures == 1
    assert seen.written == ["c", "c"]


@pytest.mark.parametrize("answer", [[True], None])
def test_an_answer_of_another_length_is_a_miss(
    seen: Seen, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "_answer", lambda *_: answer)
    assert seen.store.batch_get_v1(KEYS, "indices") == [False] * 3
    assert seen.store.batch_get(KEYS, "places") is None


def test_clients_see_the_name_of_the_backends_class(seen: Seen) -> None:
    assert type(seen.store).__name__ == "Store"


def test_a_call_of_the_plugins_own_is_not_guarded(seen: Seen) -> None:
    assert seen.store.seer_stored(KEYS) == 2
    seen.store.away = True
    with pytest.raises(OSError, match="gone"):
        seen.store.seer_stored(KEYS)
    assert seen.threads.failures == 0
