"""The tails of rollouts, and the history of the fleet. Pure."""

import pytest
from prometheus_client import CollectorRegistry

from seer_sgl.engine_types import EngineLoad
from seer_sgl.report.report import tail_begin
from seer_sgl.server.generation import CALLER
from seer_sgl.server.monitoring.counts import ServerCounts
from seer_sgl.server.monitoring.histories import CELLS, GAP_CELLS, FleetHistory
from seer_sgl.server.monitoring.latency import Latencies
from seer_sgl.server.monitoring.tails import Tails
from seer_sgl.types import Failure, FailureKind
from tests.helpers import made_sample, make_group


@pytest.mark.parametrize("requests", [1, 2, 9, 10, 11, 64, 100])
def test_the_tail_of_a_rollout_is_that_of_the_report(requests: int) -> None:
    ended: list[float] = []
    tails = Tails(ended.append)
    times = [float(number * number) for number in range(requests)]
    tails.submitted("run", requests, "name")
    for at in times:
        tails.finished("run", at)
    tails.ended("run")
    assert ended == [times[-1] - tail_begin(times)]
    assert not tails.rollouts


def test_a_tail_begins_when_a_tenth_is_left_and_ends_when_more_groups_come() -> None:
    tails = Tails(lambda _: None)
    tails.submitted("run", 10, "name")
    for at in range(8):
        tails.finished("run", float(at))
    assert tails.longest_s(100.0) == 0.0
    tails.finished("run", 8.0)
    assert tails.longest_s(100.0) == 92.0
    tails.submitted("run", 10, "name")
    assert tails.longest_s(100.0) == 0.0


def test_requests_of_a_group_that_was_given_up_are_not_waited_for() -> None:
    counts = ServerCounts([], Latencies(CollectorRegistry()))
    lost, other = make_group("lost", n=10), make_group("other", n=10)
    for group in (lost, other):
        group.caller = "run"
        counts.submitted(group.requests, 0.0)
    counts.closed(lost, Failure(FailureKind.LOST, "it failed"))
    for request in other.requests[:9]:
        request.finish("stop", None, 0.0)
        counts.finished(request, made_sample(request))
    (rollout,) = counts.tails.rollouts.values()
    assert rollout.submitted == 10
    tail_s = counts.tails.longest_s(rollout.finished[-1] + 5.0)
    assert tail_s == pytest.approx(5.0)
    assert counts.ends == {"lost": 10, "stop": 9}


@pytest.mark.parametrize(("finished", "tails"), [(8, []), (9, [0.0]), (10, [1.0])])
def test_a_rollout_that_ends_before_its_tail_has_none(finished: int, tails: list[float]) -> None:
    counts, ended = ServerCounts([], Latencies(CollectorRegistry())), list[float]()
    counts.tails = Tails(ended.append)
    group = make_group("left", n=10)
    group.caller = "run"
    counts.submitted(group.requests, 0.0)
    for number, request in enumerate(group.requests[:finished]):
        request.finish("stop", None, 0.0)
        counts.tails.finished("run", float(number))
    counts.closed(group, Failure(FailureKind.LEFT, "its caller left"))
    counts.ended("run", 10.0)
    assert ended == tails


def test_single_requests_and_rollouts_without_a_finished_request_have_no_tail() -> None:
    ended: list[float] = []
    tails = Tails(ended.append)
    tails.submitted(CALLER, 1, "name")
    tails.finished(CALLER, 1.0)
    tails.submitted("run", 3, "name")
    tails.ended("run")
    tails.ended(CALLER)
    tails.ended("unknown")
    assert not ended
    assert not tails.rollouts


def load(running: int) -> EngineLoad:
    return EngineLoad(used_tokens=10 * running, progress=(), running=running, queued=1)


def test_a_history_repeats_a_late_answer_and_shows_a_missing_one() -> None:
    history = FleetHistory(100.0)
    history.loaded("e0", load(1), 100.2)
    history.loaded("e0", load(2), 100.7)
    history.loaded("e0", load(3), 110.0)
    cells = history.since(0, 112.0, ["e0"])
    assert cells["engines"]["e0"]["running"] == [2] * (GAP_CELLS + 1) + [None] * 4 + [3] * 3
    assert (cells["first"], cells["end"]) == (0, 13)


def test_a_history_is_bounded_and_continues_where_a_reader_was() -> None:
    history = FleetHistory(0.0)
    for second in range(10_000):
        history.loaded("e0", load(second), float(second))
        history.generated(float(second), 2)
        history.generated(float(second), 3)
    whole = history.since(0, 9999.0, ["e0"])
    assert whole["end"] == 10_000
    assert whole["engines"]["e0"]["running"] == list(range(10_000 - CELLS, 10_000))
    assert whole["tokens"] == [5] * CELLS
    rest = history.since(9_998, 9999.0, ["e0"])
    assert rest["engines"]["e0"]["running"] == [9_998, 9_999]
    for beyond in (10_001, 10**11):
        assert history.since(beyond, 9999.0, ["e0"])["engines"]["e0"]["kv"] == []
    history.left("e0")
    assert history.since(9_999, 9999.0, ["e0"])["engines"]["e0"]["running"] == [None]
