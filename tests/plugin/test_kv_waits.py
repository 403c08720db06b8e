"""The requests that wait for KV in the queue of an engine."""

from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.plugin import kv_waits
from seer_sgl.plugin.kv_waits import count_waiting, waiting


def queue(*, reads: str, full: bool = False) -> Any:
    """Returns a scheduler with the requests a, b and c in its queue. `reads`: whose KV is read."""
    reqs = [SimpleNamespace(rid=name, cache_request_handle=name) for name in "abc"]
    return SimpleNamespace(
        waiting_queue=reqs,
        running_batch=SimpleNamespace(batch_is_full=full),
        tree_cache=SimpleNamespace(ongoing_prefetch=dict.fromkeys(reads)),
    )


def counted(scheduler: Any, before: int = 0) -> int:
    """Returns the number in the load report of a scheduler, whose own count is `before`."""
    inquirer: Any = SimpleNamespace(
        pool_stats_observer=scheduler,
        get_running_batch=lambda: scheduler.running_batch,
        get_waiting_queue=lambda: scheduler.waiting_queue,
    )
    transfers = SimpleNamespace(decode_transfer_queue_reqs=before)
    load: Any = SimpleNamespace(disaggregation=transfers)
    assert count_waiting(load, inquirer) is load
    return int(transfers.decode_transfer_queue_reqs)


def test_queued_requests_whose_kv_is_read_are_named_and_counted() -> None:
    scheduler = queue(reads="cax")  # the request x is not in the queue
    assert waiting(scheduler) == ["a", "c"]
    assert counted(scheduler) == 2
    assert counted(scheduler, before=3) == 5


def test_while_the_batch_is_full_requests_wait_for_room() -> None:
    scheduler = queue(reads="abc", full=True)
    assert waiting(scheduler) == []
    assert counted(scheduler) == 0


def test_nothing_waits_for_kv_without_a_pool() -> None:
    scheduler = queue(reads="abc")
    scheduler.tree_cache = SimpleNamespace()
    assert waiting(scheduler) == []
    assert counted(scheduler, before=1) == 1


def test_a_report_names_a_bounded_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_waits, "MOST_NAMED", 2)
    assert waiting(queue(reads="abc")) == ["a", "b"]
    assert counted(queue(reads="abc")) == 3
