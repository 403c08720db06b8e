"""The requests that wait for KV in the queue of an engine, and those that read none."""

from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.link.contract import NO_READ, ORIGIN
from seer_sgl.plugin import kv_waits
from seer_sgl.plugin.kv_waits import count_waiting, read_kv, waiting


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


@pytest.mark.parametrize(
    ("params", "reads"),
    [
        (None, True),
        ({"their": 1}, True),
        ({ORIGIN: {"group": "g"}}, True),
        ({ORIGIN: {NO_READ: False}}, True),
        ({ORIGIN: {NO_READ: True}}, False),
        ({ORIGIN: [NO_READ], NO_READ: True}, True),
        ("no dictionary", True),
    ],
)
def test_only_a_request_that_forbids_it_starts_no_read(params: Any, reads: bool) -> None:
    calls: list[Any] = []
    req: Any = SimpleNamespace(sampling_params=SimpleNamespace(custom_params=params))

    def stock(*arguments: Any, **named: Any) -> str:
        calls.append((arguments, named))
        return "ticket"

    assert read_kv(stock, "scheduler", req, 7, other=8) == ("ticket" if reads else None)
    assert calls == [(("scheduler", req, 7), {"other": 8})] * reads
