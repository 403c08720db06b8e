"""The report's figures on a rollout small enough to compute by hand; the plot is drawn."""

import json
from pathlib import Path

import pytest

from seer_sgl.engine_types import EngineLoad
from seer_sgl.report.lanes import Lanes
from seer_sgl.report.recorder import LONGEST_POLL_S, Recorder
from seer_sgl.report.report import quantile, report
from seer_sgl.report.timeline import draw_timeline, finding
from seer_sgl.types import Chunk, ChunkResult, Failure, FailureKind, Move, Request
from tests.helpers import made_sample, make_group, make_reply
from tests.support.infos import chunk_on, info, landed


@pytest.fixture
def record() -> Recorder:
    """Two requests of 20 and 10 tokens; the first moves from a to b and loses 7 tokens of KV."""
    group = make_group(n=2)
    record = Recorder("r1", 7, [info("a"), info("b")], [group], started_at=100.0)
    long, short = group.requests

    def send(engine_id: str, request: Request, at: float) -> Chunk:
        migrated = bool(request.engines) and request.engines[-1] != engine_id
        chunk = chunk_on(engine_id, request, migrated)
        record.sent(chunk, 100.0 + at)
        return chunk

    def give_back(chunk: Chunk, at: float, cached: int, retractions: int = 0) -> None:
        reply = make_reply(10)
        reply.cached_device, reply.retractions = cached, retractions
        chunk.request.append(reply)
        chunk.request.engines.append(chunk.engine_id)
        record.grown(landed(chunk, reply, 100.0 + at))

    first, other = send("a", long, 0.0), send("a", short, 0.0)
    give_back(other, 1.0, cached=9)
    short.finish("stop", 3, 101.0)
    record.finished(short, made_sample(short))
    give_back(first, 2.0, cached=0)
    # Input of 20 tokens, of which 19 could have been cached.
    give_back(send("b", long, 2.0), 4.0, cached=12, retractions=1)
    long.finish("length", None, 104.0)
    record.finished(long, made_sample(long))
    record.closed(group, None)
    record.loaded("b", EngineLoad(used_tokens=50, progress=(), running=2, queued=1), 103.0)
    record.loaded("b", EngineLoad(used_tokens=40, progress=(), running=1), 103.5)
    return record


def test_kv_that_reached_the_pool_is_timed_and_other_chunks_are_counted(record: Recorder) -> None:
    request = make_group().requests[0]
    for seconds in (0.01, 0.03, 0.02):
        record.stored(request, True, seconds, 104.0)
    record.stored(request, False, 9.0, 104.0)
    made = report(record)
    assert made["store_latency_ms"] == {"p50": 20.0, "p99": 30.0}
    assert made["unstored_chunks"] == 1


def test_figures(record: Recorder) -> None:
    made = report(record)
    assert record.totals.reused == 12, "cached input tokens of continuations"
    expected = {
        "rollout_id": "r1",
        "seed": 7,
        "groups": 1,
        "samples": 2,
        "response_tokens": 30,
        "wall_s": 4.0,
        "throughput_tok_s": 7.5,
        "tail_s": 0.0,
        "chunks": 3,
        "migrations": 1,
        "cached_tokens": {"device": 21, "host": 0, "storage": 0},
        "recomputed_tokens": 7,
        "retractions": 1,
        "accept_length": None,
        "drafting": None,
        "finish_reasons": {"stop": 1, "length": 1},
    }
    assert {key: made[key] for key in expected} == expected
    a, b = made["engines"]
    assert (a["chunks"], b["chunks"]) == (2, 1)
    assert (a["max_inflight"], a["mean_inflight"]) == (2, 0.75)
    assert b["kv_peak"] == 0.25
    assert (b["mean_running"], b["mean_queued"]) == (1.5, 0.5)
    assert (a["mean_running"], a["mean_queued"]) == (0.0, 0.0), "never polled"
    json.dumps(made)


def test_the_time_that_requests_wait_for_kv_is_that_between_polls(record: Recorder) -> None:
    for at, waiting in ((100.0, 5), (100.5, 4), (101.0, 0), (101.5, 2), (201.5, 1), (202.0, 0)):
        load = EngineLoad(used_tokens=0, progress=(), kv_waiting=waiting)
        record.loaded("a", load, at)
    made = report(record)
    a, b = made["engines"]
    assert a["kv_wait_s"] == 4 * 0.5 + 2 * 0.5 + LONGEST_POLL_S
    assert (b["kv_wait_s"], made["kv_wait_s"]) == (0.0, a["kv_wait_s"])


def test_a_fetch_is_counted_when_sglang_has_read_from_the_pool_whatever_was_planned(
    record: Recorder,
) -> None:
    request = make_group("other").requests[0]
    for move, storage in ((Move.FETCH, 0), (Move.FETCH, 16), (Move.PREFILL, 16), (Move.STAY, 16)):
        chunk = chunk_on("a", request, move=move)
        reply = make_reply(10)
        reply.cached_storage = storage
        record.sent(chunk, 104.0)
        record.grown(landed(chunk, reply, 105.0))
    found = report(record)
    assert (found["fetches"], found["planned_fetches"]) == (3, 2)
    assert found["cached_tokens"]["storage"] == 48


def test_a_lost_chunk_is_counted_and_nothing_else(record: Recorder) -> None:
    before = report(record)
    chunk = chunk_on("a", make_group("other").requests[0])
    record.sent(chunk, 104.0)
    record.lost(ChunkResult(chunk=chunk, now=104.0, error=OSError("gone")))
    after = report(record)
    assert after["lost_chunks"] == before["lost_chunks"] + 1
    assert after["chunks"] == before["chunks"]


def test_a_rollout_that_ends_early_has_no_tail() -> None:
    lost, left = make_group("lost", n=1), make_group("left", n=19)
    record = Recorder("r1", 7, [info("a")], [lost, left], started_at=100.0)
    for at, request in enumerate(left.requests[:17], 101):
        request.finish("stop", None, float(at))
        record.finished(request, made_sample(request))
    record.closed(left, Failure(FailureKind.LEFT, "its caller left"))
    assert (report(record)["wall_s"], report(record)["tail_s"]) == (17.0, 0.0)
    assert finding(record, Lanes.of(record)) == "17 samples in 17.0 s, of 20"
    last = left.requests[17]
    last.finish("stop", None, 130.0)
    record.finished(last, made_sample(last))
    assert report(record)["tail_s"] == 0.0, "18 of 20 is the begin of the tail"
    record.closed(lost, Failure(FailureKind.LOST, "it failed"))
    assert report(record)["tail_s"] == 0.0
    record.finished_at.append(40.0)
    assert report(record)["tail_s"] == 10.0, "the one that was given up is not waited for"


def test_quantiles_are_nearest_rank() -> None:
    assert [quantile([1, 2, 3, 4], share) for share in (0.0, 0.5, 0.75, 0.99, 1.0)] == [
        1,
        2,
        3,
        4,
        4,
    ]
    assert quantile([], 0.5) == 0


def test_an_empty_rollout_has_a_report_and_a_plot(tmp_path: Path) -> None:
    empty = Recorder("r", 0, [info("a")], [make_group("x"), make_group("y")], 0.0)
    made = report(empty)
    assert (made["wall_s"], made["throughput_tok_s"], made["samples"]) == (0.0, 0.0, 0)
    assert (made["groups"], made["unfinished_groups"]) == (0, 2)
    assert [path.exists() for path in draw_timeline(empty, tmp_path / "timeline")] == [True, True]


def test_an_engine_that_was_never_needed_is_in_the_report() -> None:
    record = Recorder("r1", 7, [info("a"), info("b")], [make_group(n=1)], started_at=0.0)
    request = make_group(n=1).requests[0]
    record.sent(chunk_on("a", request), 1.0)
    request.finished_at = 5.0
    record.finished(request, made_sample(request))
    engines = {engine["engine_id"]: engine for engine in report(record)["engines"]}
    assert engines["a"]["mean_inflight"] == pytest.approx(0.8)
    assert engines["b"]["mean_inflight"] == engines["b"]["chunks"] == 0
    assert engines["a"]["idle_share"] == pytest.approx(0.2)
    assert engines["b"]["idle_share"] == 1


def test_chunks_behind_the_last_sample_are_no_busy_time_of_the_rollout() -> None:
    group = make_group(n=2)
    record = Recorder("r1", 7, [info("a")], [group], started_at=0.0)
    done, failing = group.requests
    chunks = [chunk_on("a", request) for request in (done, failing)]
    for chunk in chunks:
        record.sent(chunk, 1.0)
    for chunk, now in zip(chunks, (2.0, 10.0), strict=True):
        record.grown(landed(chunk, make_reply(10), now))
    done.finished_at = 2.0
    record.finished(done, made_sample(done))
    (engine,) = report(record)["engines"]
    assert (engine["idle_share"], engine["mean_inflight"]) == (0.5, 1.0)
    assert engine["throughput_tok_s"] == 2.0, "20 tokens until its last chunk"
