"""An error in SGLang's KV threads costs one operation; a dead or stuck thread is reported."""

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.plugin.kv_threads import STUCK_S, KvThreads


def failing(*_: Any, **__: Any) -> Any:
    raise OSError("the store is gone")


def operation() -> Any:
    return SimpleNamespace(request_id="r")


def controller(groups: tuple[object, ...] = ()) -> Any:
    return SimpleNamespace(
        prefetch_sync_queue=queue.Queue(), prefetch_completion_sync_groups=groups
    )


def test_a_lookup_or_a_read_that_fails_is_a_miss() -> None:
    threads = KvThreads()
    assert threads.look_up(failing, controller(), operation(), pp_rank=0) == ([], 0)
    assert threads.read(failing, controller(), operation(), ["page"]) == 0
    assert threads.failures == 2
    assert threads.broken is None


def test_what_does_not_fail_is_passed_through_with_all_arguments() -> None:
    threads: Any = KvThreads()
    own, read = controller(), operation()

    def stock(*args: Any, **kwargs: Any) -> Any:
        assert args[:2] == (own, read)
        return args[2:], kwargs

    assert threads.look_up(stock, own, read, 1, rank=2) == ((1,), {"rank": 2})
    assert threads.read(stock, own, read, 1, rank=2) == ((1,), {"rank": 2})
    assert threads.failures == 0


def test_a_write_that_fails_leaves_the_pages_unstored() -> None:
    threads = KvThreads()
    threads.write(failing, controller(), SimpleNamespace(hash_value=["page"]))
    assert threads.failures == 1


def test_ranks_agree_on_progress_or_the_thread_ends() -> None:
    threads = KvThreads()
    ack: Any = SimpleNamespace(operation=operation(), completed_tokens=16, pool_hits={"a": 1})
    threads.agree(failing, controller(), ack)
    assert (ack.completed_tokens, ack.pool_hits) == (None, None)
    with pytest.raises(OSError, match="gone"):
        threads.agree(failing, controller(("group",)), ack)


def test_a_thread_that_ends_is_reported_by_name_and_error(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    threads, goes_on, own = KvThreads(), threading.Event(), controller()
    own.storage_stop_event = threading.Event()
    for name in ("prefetch", "prefetch_io_aux", "prefetch_sync", "backup"):
        thread = threading.Thread(target=goes_on.wait)
        thread.start()
        setattr(own, f"{name}_thread", thread)
    running = own.prefetch_thread
    threads.watch(own)
    assert threads.broken is None
    own.prefetch_thread = threading.Thread(target=failing)
    own.prefetch_thread.start()
    own.prefetch_thread.join()
    assert threads.broken == "the KV thread `lookup` ended: OSError('the store is gone')"
    assert len(errors) == 1, "as SGLang would see it"
    own.prefetch_thread = running
    goes_on.set()
    own.backup_thread.join()
    own.prefetch_sync_thread.join()
    own.prefetch_io_aux_thread.join()
    running.join()
    assert threads.broken == "the KV thread `lookup` ended: no error"
    own.storage_stop_event.set()
    assert threads.broken is None, "SGLang has stopped them"


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
        assert threads.broken is None
    now[0] += 1
    assert threads.broken == "the KV thread `read` has waited for the pool for 301 s"
    ends.set()
    thread.join()
    assert threads.broken is None


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
