"""An error in SGLang's KV threads costs one operation; a dead or stuck thread is reported."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.plugin.kv_threads import STUCK_S, KvThreads


def failing(*_: Any, **__: Any) -> Any:
    raise OSError("the store is gone")


def stopped() -> Any:
    """Returns a controller whose threads SGLang has stopped."""
    event = threading.Event()
    event.set()
    return SimpleNamespace(storage_stop_event=event)


def test_a_call_that_is_under_way_is_known_in_its_own_thread() -> None:
    threads, elsewhere = KvThreads(), list[bool]()
    with threads.guarded("read"):
        other = threading.Thread(target=lambda: elsewhere.append(threads.calling("read")))
        other.start()
        other.join()
        assert threads.calling("read")
        assert not threads.calling("write")
    assert not threads.calling("read")
    assert elsewhere == [False]


def test_a_thread_that_ends_is_reported_by_name_and_error(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    threads, proceed = KvThreads(), threading.Event()
    own: Any = SimpleNamespace(storage_stop_event=threading.Event())
    for name in ("prefetch", "prefetch_io_aux", "prefetch_sync", "backup"):
        thread = threading.Thread(target=proceed.wait)
        thread.start()
        setattr(own, f"{name}_thread", thread)
    running = own.prefetch_thread
    threads.watch()
    assert threads.broken(own) is None
    own.prefetch_thread = threading.Thread(target=failing)
    own.prefetch_thread.start()
    own.prefetch_thread.join()
    assert threads.broken(own) == "the KV thread `lookup` ended: OSError('the store is gone')"
    assert len(errors) == 1, "as SGLang would see it"
    own.prefetch_thread = running
    proceed.set()
    own.backup_thread.join()
    own.prefetch_sync_thread.join()
    own.prefetch_io_aux_thread.join()
    running.join()
    assert threads.broken(own) == "the KV thread `lookup` ended: no error"
    own.storage_stop_event.set()
    assert threads.broken(own) is None, "SGLang has stopped them"


def test_a_call_that_does_not_return_is_reported_until_it_does() -> None:
    now = [0.0]
    threads = KvThreads(lambda: now[0])
    began, ends = threading.Event(), threading.Event()

    def call() -> None:
        with threads.waiting("read"):
            began.set()
            ends.wait()

    thread = threading.Thread(target=call)
    thread.start()
    began.wait()
    with threads.waiting("read"):  # another thread's call, which returns
        now[0] = STUCK_S
        assert threads.broken(stopped()) is None
    now[0] += 1
    assert threads.broken(stopped()) == "the KV thread `read` has waited for the pool for 301 s"
    ends.set()
    thread.join()
    assert threads.broken(stopped()) is None


def test_an_engine_of_one_rank_is_not_idle_while_it_reads_from_the_pool() -> None:
    threads = KvThreads()

    def idle(tp_size: int = 1, **how: bool) -> bool:
        arguments = SimpleNamespace(tp_size=tp_size, pp_size=1)
        scheduler: Any = SimpleNamespace(server_args=arguments)
        return threads.idle(lambda *_, **__: True, scheduler, **how)

    assert idle()
    with threads.waiting("read"):
        assert not idle()
        assert idle(for_health_check=True)
        assert idle(tp_size=2)
    with threads.waiting("acknowledgement"):
        assert idle()
    assert idle()
