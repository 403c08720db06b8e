"""Single faults of simulated engines: what they cost, and what they must not cost."""

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from typing_extensions import override

from bench.faults.faulted import Faulted, simulate_faulted
from bench.faults.faults import (
    AckConfig,
    EventConfig,
    FaultsConfig,
    OutageConfig,
)
from seer_sgl.driver.observer import Observer
from seer_sgl.errors import ChunkRecalled
from seer_sgl.report.report import report
from seer_sgl.sim.engine import token_source
from seer_sgl.sim.simulate import simulate
from seer_sgl.sim.tokens import ids
from seer_sgl.sim.workload import sample
from seer_sgl.timing import DEFAULT
from seer_sgl.types import Chunk, ChunkResult
from tests.sim.helpers import CROWDED, small
from tests.sim.storm import ExactlyOnce

SETTINGS = ("engine.overhead_ms=50", "engine.kv_tokens=20000", "scheduling.chunk_tokens=200")


class Chunks(Observer):
    """The chunks by time: sent, with a reply, and lost."""

    def __init__(self) -> None:
        self.sent_at: list[tuple[float, Chunk]] = []
        self.replies: list[ChunkResult] = []
        self.losses: list[ChunkResult] = []

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self.sent_at.append((now, chunk))

    @override
    def grown(self, result: ChunkResult) -> None:
        self.replies.append(result)

    @override
    def lost(self, result: ChunkResult) -> None:
        self.losses.append(result)

    def on(self, engine_id: str, begin: float, end: float) -> Iterator[ChunkResult]:
        """Yields the results from one engine between two times."""
        for result in [*self.replies, *self.losses]:
            if result.chunk.engine_id == engine_id and begin <= result.now < end:
                yield result


def rolled(*overrides: str, **faults: object) -> tuple[Faulted, Chunks]:
    """Returns a rollout of 128 requests on four engines with faults, checked."""
    config = small(*SETTINGS, *overrides)
    responses = sample(config.workload)
    once, chunks = ExactlyOnce(responses, config.workload.lengths.max), Chunks()
    plan = msgspec.convert(faults, FaultsConfig)
    result = simulate_faulted(responses, config, plan, None, [once, chunks])
    once.check()
    return result, chunks


def test_an_engine_that_dies_costs_its_chunks_in_flight_and_serves_again_empty() -> None:
    death = EventConfig(at_s=60.0, kind="death", engine=0, seconds=30.0)
    result, chunks = rolled(events=(death,))
    lost = [result.chunk for result in chunks.losses]
    assert result.counts == {"death": 1}
    assert lost
    assert {chunk.engine_id for chunk in lost} == {"e0"}
    assert result.wasted_tokens <= sum(chunk.max_new_tokens for chunk in lost)
    assert not any(60.0 < at < 90.0 and chunk.engine_id == "e0" for at, chunk in chunks.sent_at)
    assert any(chunk.engine_id == "e0" for at, chunk in chunks.sent_at if at > 90.0)


def test_an_engine_with_other_weights_gets_no_chunk_until_it_has_the_right_ones() -> None:
    """It is down from 20 to 30 s, and has other weights until 40 s."""
    death = EventConfig(at_s=20.0, kind="death", engine=0, seconds=10.0, other_weights=True)
    result, chunks = rolled(events=(death,))
    assert result.counts == {"death": 1, "other weights": 1}
    assert not any(20.0 < at < 40.0 and chunk.engine_id == "e0" for at, chunk in chunks.sent_at)
    assert any(result.reply is not None for result in chunks.on("e0", 40.0, 1e9))


@pytest.mark.parametrize("kind", ["hang", "cut"])
def test_a_short_standstill_costs_time_and_no_chunk(kind: str) -> None:
    undisturbed, _ = rolled()
    pause = {"at_s": 60.0, "kind": kind, "seconds": 20.0}
    result, chunks = rolled(events=[pause], stall_timeout_s=60.0)
    assert result.counts == {kind: 4}
    assert (chunks.losses, result.wasted_tokens) == ([], 0)
    slower = result.record.finished_at[-1] - undisturbed.record.finished_at[-1]
    assert 0 < slower < 40.0


@pytest.mark.parametrize("kind", ["hang", "cut"])
def test_a_standstill_longer_than_the_stall_timeout_moves_the_chunks(kind: str) -> None:
    pause = {"at_s": 60.0, "kind": kind, "engine": 1, "seconds": 1000.0}
    _, chunks = rolled(events=[pause], stall_timeout_s=20.0)
    assert chunks.losses
    assert {result.chunk.engine_id for result in chunks.losses} == {"e1"}
    # A poll without an answer takes ten seconds.
    assert all(80.0 <= result.now < 105.0 for result in chunks.losses)
    assert list(chunks.on("e1", 105.0, 1000.0)) == []


def test_acknowledgements_that_lie_cost_prefill_and_no_token() -> None:
    undisturbed, _ = rolled(*CROWDED)
    result, _ = rolled(*CROWDED, acks=AckConfig(untrue=0.9))
    assert result.counts["untrue acks"] > 50
    assert result.prefilled_tokens > 1.1 * undisturbed.prefilled_tokens
    assert result.wasted_tokens == 0


def test_reads_that_stand_still_on_one_engine_cost_the_chunks_that_wait_for_them() -> None:
    undisturbed, _ = rolled(*CROWDED)
    pause = EventConfig(at_s=60.0, kind="reads", engine=0, seconds=1000.0)
    result, chunks = rolled(*CROWDED, events=(pause,))
    figures = report(result.record)
    lost = [result.chunk for result in chunks.losses]
    assert result.counts == {"reads": 1}
    assert 0 < len(lost) == figures["lost_chunks"] <= 4
    assert {(chunk.engine_id, chunk.reads) for chunk in lost} == {("e0", True)}
    assert len({chunk.number for chunk in lost}) == len(lost), "no chunk is lost twice"
    assert figures["engines"][0]["kv_wait_s"] >= len(lost) * DEFAULT.kv_least_s
    assert any(not chunk.reads for at, chunk in chunks.sent_at if chunk.engine_id == "e0")
    assert all(chunk.reads for _, chunk in chunks.sent_at if chunk.engine_id != "e0")
    assert (result.wasted_tokens, figures["engines"][0]["states"][1:]) == (0, [])
    ended, undisturbed_end = result.record.finished_at[-1], undisturbed.record.finished_at[-1]
    assert ended < undisturbed_end + 30.0, "it does not wait for the reads"


def test_a_pool_that_stands_still_for_all_engines_ends_no_rollout() -> None:
    undisturbed, _ = rolled(*CROWDED)
    result, chunks = rolled(*CROWDED, events=(EventConfig(at_s=30.0, kind="reads", seconds=1e6),))
    assert result.counts == {"reads": 6}
    assert 0 < len(chunks.losses) <= 24
    assert {type(result.error) for result in chunks.losses} == {ChunkRecalled}
    assert result.record.finished_at[-1] < undisturbed.record.finished_at[-1] + 30.0


def test_short_pauses_of_reads_cost_no_chunk() -> None:
    pauses = [EventConfig(at_s=at, kind="reads", seconds=3.0) for at in (60.0, 90.0, 120.0)]
    result, chunks = rolled(*CROWDED, events=tuple(pauses))
    assert result.counts == {"reads": 18}
    assert chunks.losses == []
    assert all(chunk.reads for _, chunk in chunks.sent_at)


def test_faults_of_several_engines_at_once_lose_nothing() -> None:
    outages = OutageConfig(mean_s=150.0, seconds=(1.0, 30.0), together=1.0)
    plan = {"deaths": msgspec.structs.asdict(outages), "recovery_timeout_s": 1000.0}
    result, chunks = rolled(**plan, cuts=outages, stall_timeout_s=10.0)
    assert result.counts["death"] >= 4
    assert result.counts["cut"] >= 4
    together = itertools.groupby(sorted(r.now for r in chunks.losses))
    assert max(len(list(same)) for _, same in together) > 2


def test_without_faults_the_rollout_is_that_of_the_plain_simulation() -> None:
    result, _ = rolled()
    plain = simulate(sample(small().workload), small(*SETTINGS)).record
    assert list(result.record.finished_at) == pytest.approx(list(plain.finished_at), rel=0.02)
    assert result.counts == {}
    assert result.wasted_tokens == 0
    assert result.prefilled_tokens > 0


@pytest.mark.parametrize(
    ("source", "first", "problem"),
    [
        ("a", 3, "token 3 of a.* does not follow the first 5"),
        ("a", 6, "token 6"),
        ("b", 5, "token 5 of b"),
    ],
)
def test_simulated_tokens_that_do_not_follow_each_other_are_an_error(
    source: str, first: int, problem: str
) -> None:
    response = ids(token_source("a"))
    response.extend(ids(token_source("a"), 0, 5))
    response.extend(ids(token_source("b"), 0, 0))
    with pytest.raises(ValueError, match=problem):
        response.extend(ids(token_source(source), first, 2))
    with pytest.raises(ValueError, match="weights other"):
        response.extend(ids(token_source("a", "other"), 5, 2))
    assert len(response) == 5
