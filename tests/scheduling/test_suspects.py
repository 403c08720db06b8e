"""Requests whose engine died: they run apart, so that the next death names the one to blame."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer_sgl.errors import EngineDied, EngineStalled, EngineUnavailable
from seer_sgl.sampling import NEUTRAL
from seer_sgl.scheduling.engine_index import EngineSlot
from seer_sgl.scheduling.ledger import KVLedger
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.scheduling.suspects import TEST_TOKENS
from seer_sgl.types import Chunk, ChunkResult, FailureKind, Group, Request, RequestState
from tests.helpers import UNDIVIDABLE, make_group, make_reply
from tests.scheduling.chunks import take, take_all

CHUNK = 40
LONGEST = 100


class World:
    """Engines in rounds: each round sends what can be sent; then every chunk comes back.

    `deadly`: whether a chunk kills its engine, and with it all other chunks there. A dead engine is
    back in the next round. `kept`: tokens of such a chunk that had arrived (streaming requests).
    """

    def __init__(
        self,
        engines: int,
        deadly: Callable[[Chunk], bool],
        *,
        max_kills: int = 2,
        slots: int = 8,
        kept: int = 0,
    ) -> None:
        self.kept = kept
        self.scheduler = Scheduler(CHUNK, patience_s=0.0, max_engine_kills=max_kills)
        for number in range(engines):
            self.scheduler.add_engine(EngineSlot(f"e{number}", KVLedger(10_000, 1), slots))
        self.deadly = deadly
        self.deaths: list[list[Request]] = []  # the requests that each death took
        self.together = 0  # the most suspects that one engine had at a time
        self.most_deaths = 0  # the most deaths that counted against one request

    def watch(self, chunks: list[Chunk]) -> None:
        """Looks at the suspects among the chunks of an engine."""
        live = self.scheduler._live
        attempts = [live[chunk.request.uid] for chunk in chunks if chunk.request.uid in live]
        self.together = max(self.together, sum(each.isolated for each in attempts))
        self.most_deaths = max([self.most_deaths, *(each.engine_deaths for each in attempts)])

    def round(self) -> bool:
        """Returns whether there was work."""
        sent: dict[str, list[Chunk]] = {}
        for chunk in take_all(self.scheduler):
            sent.setdefault(chunk.engine_id, []).append(chunk)
        for engine_id, chunks in sent.items():
            self.watch(chunks)
            if any(map(self.deadly, chunks)):
                self.kill(engine_id, chunks)
            else:
                self.give_back(chunks)
        return bool(sent)

    def kill(self, engine_id: str, chunks: list[Chunk]) -> None:
        """Lets an engine die with these chunks, and come back."""
        self.deaths.append([chunk.request for chunk in chunks])
        self.scheduler.set_available(engine_id, False)
        for chunk in chunks:
            kept = min(self.kept, chunk.max_new_tokens - 1)
            reply = make_reply(kept, finish="abort") if kept else None
            error = EngineDied("it was killed", engine_id=engine_id)
            self.scheduler.complete(ChunkResult(chunk=chunk, now=0.0, reply=reply, error=error))
        self.scheduler.set_available(engine_id, True)

    def give_back(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            reply = make_reply(chunk.max_new_tokens)
            self.scheduler.complete(ChunkResult(chunk=chunk, now=0.0, reply=reply))

    def roll_out(self, group: Group) -> None:
        self.scheduler.submit(group)
        while self.round():
            assert len(self.deaths) < 100
        assert not self.scheduler.check()


def single(n: int, **options: object) -> Group:
    group = make_group(n=n, max_response_len=LONGEST, **options)  # type: ignore[arg-type]
    group.on_failure = "sample"
    return group


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 40),
    engines=st.integers(1, 6),
    slots=st.integers(1, 12),
    max_kills=st.integers(2, 4),
    poison=st.tuples(st.integers(0, 39), st.integers(0, LONGEST - 1)),
    whole=st.booleans(),
)
def test_a_request_that_kills_is_given_up_alone_after_few_engines(
    *, n: int, engines: int, slots: int, max_kills: int, poison: tuple[int, int], whole: bool
) -> None:
    culprit, at = poison[0] % n, poison[1]

    def deadly(chunk: Chunk) -> bool:
        begin = chunk.request.generated
        assert not whole or chunk.max_new_tokens == LONGEST
        return chunk.request.index == culprit and begin <= at < begin + chunk.max_new_tokens

    world = World(engines, deadly, max_kills=max_kills, slots=slots)
    group = single(n, sampling=UNDIVIDABLE if whole else NEUTRAL)
    world.roll_out(group)
    for request in group.requests:
        assert request.state is RequestState.FINISHED
        if request.index == culprit:
            assert request.failure is not None
            assert request.failure.kind is FailureKind.KILLED
            assert request.generated <= at
        else:
            assert request.failure is None
            assert request.generated == LONGEST
    assert max_kills <= len(world.deaths) <= max_kills + 1
    assert world.together <= 1
    if whole or at % CHUNK < TEST_TOKENS:
        beside = any(len(death) > 1 for death in world.deaths[1:])
        assert beside or len(world.deaths) == max_kills, "its test had the engine to itself"


@settings(max_examples=100, deadline=None)
@given(
    fates=st.lists(st.booleans(), min_size=1, max_size=60),
    n=st.integers(1, 20),
)
def test_whatever_engines_die_of_every_request_ends_once(fates: list[bool], n: int) -> None:
    rest = iter(fates)
    world, group = World(3, lambda _: next(rest, False)), single(n)
    world.roll_out(group)
    for request in group.requests:
        assert request.state is RequestState.FINISHED
        if request.failure is None:
            assert request.generated == LONGEST
        else:
            deaths = sum(request in death for death in world.deaths)
            assert deaths >= 2


def test_a_suspect_is_cleared_by_passing_what_its_lost_chunk_could_have_been() -> None:
    deaths = {(0, 0), (0, TEST_TOKENS + CHUNK)}  # of request 0, at these lengths

    def deadly(chunk: Chunk) -> bool:
        place = (chunk.request.index, chunk.request.generated)
        if place in deaths:
            deaths.discard(place)
            return True
        return False

    world, group = World(2, deadly), single(4)
    world.roll_out(group)
    assert len(world.deaths) == 2
    assert all(request.failure is None for request in group.requests)
    assert world.most_deaths == 1


def test_suspects_do_not_wait_for_each_other_when_one_of_them_is_aborted() -> None:
    world, group = World(1, lambda _: not world.deaths), single(3)
    world.scheduler.submit(group)
    world.round()
    assert len(world.deaths) == 1
    assert world.scheduler.abort(group.requests[0], 0.0)
    while world.round():
        pass
    assert [request.generated for request in group.requests] == [0, LONGEST, LONGEST]
    assert not world.scheduler.check()


def test_an_engine_that_fails_without_dying_makes_no_suspects() -> None:
    scheduler = Scheduler(CHUNK)
    scheduler.add_engine(EngineSlot("e0", None, 10))
    group = single(2)
    scheduler.submit(group)
    for _ in range(2):
        error = EngineUnavailable("HTTP 500")
        scheduler.complete(ChunkResult(chunk=take(scheduler), now=0.0, error=error))
        assert scheduler._suspects.first is None


@pytest.mark.parametrize("kept", [0, 1, TEST_TOKENS, CHUNK - 1])
def test_tokens_that_arrived_before_a_death_clear_nothing(kept: int) -> None:
    world = World(3, lambda chunk: chunk.max_new_tokens > kept, kept=kept)
    group = single(1)
    group.requests[0].max_response_len = 100 * CHUNK
    world.roll_out(group)
    (request,) = group.requests
    assert request.failure is not None
    assert request.failure.kind is FailureKind.KILLED
    assert len(world.deaths) == (2 if kept < TEST_TOKENS else 3)


class Crowd(World):
    """Engines whose chunks come back at different times, and groups that come one after another.

    `answers` draws whether a chunk comes back in a round.
    """

    def __init__(self, engines: int, poisons: dict[str, int], answers: random.Random) -> None:
        super().__init__(engines, self.is_deadly, slots=6)
        self.poisons = poisons  # by group id: the token at which a request kills an engine
        self.answers = answers
        self.flying: dict[str, list[Chunk]] = {f"e{number}": [] for number in range(engines)}

    def is_deadly(self, chunk: Chunk) -> bool:
        at = self.poisons.get(chunk.request.group.group_id)
        begin = chunk.request.generated
        return at is not None and begin <= at < begin + chunk.max_new_tokens

    def round(self) -> bool:
        for chunk in take_all(self.scheduler):
            self.flying[chunk.engine_id].append(chunk)
        for engine_id, chunks in self.flying.items():
            self.watch(chunks)
            if any(self.is_deadly(c) and self.answers.random() < 0.5 for c in chunks):
                self.flying[engine_id] = []
                self.kill(engine_id, chunks)
                continue
            harmless = [chunk for chunk in chunks if not self.is_deadly(chunk)]
            back = [chunk for chunk in harmless if self.answers.random() < 0.5]
            self.flying[engine_id] = [chunk for chunk in chunks if chunk not in back]
            self.give_back(back)
        return any(self.flying.values()) or self.scheduler.check() != []


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    engines=st.integers(1, 4),
    bystanders=st.integers(1, 12),
    poisons=st.lists(st.integers(0, LONGEST - 1), min_size=1, max_size=4),
    whole=st.booleans(),
)
def test_no_bystander_is_given_up_whatever_comes_beside_it(
    seed: int, engines: int, bystanders: int, poisons: list[int], whole: bool
) -> None:
    draw = random.Random(seed)
    deadly = {f"poison {i}": at for i, at in enumerate(poisons)}
    world = Crowd(engines, deadly, draw)
    names = [*deadly, *(f"bystander {i}" for i in range(bystanders))]
    draw.shuffle(names)
    groups = []
    for name in names:
        groups.append(single(1, group_id=name, sampling=UNDIVIDABLE if whole else NEUTRAL))
        world.scheduler.submit(groups[-1])
        for _ in range(draw.choice([0, 0, 1, 3])):
            world.round()
    rounds = 0
    while world.round():
        rounds += 1
        assert rounds < 10_000
    assert not world.scheduler.check()
    for group in groups:
        (request,) = group.requests
        if group.group_id in deadly:
            assert request.failure is not None
        else:
            assert request.failure is None
            assert request.generated == LONGEST
    assert world.together <= 1
    assert len(world.deaths) <= 4 * len(poisons)


def test_a_request_that_stalled_engines_waits_for_an_engine_without_others() -> None:
    scheduler = Scheduler(CHUNK, patience_s=0.0)
    for name in ("e0", "e1", "e2"):
        scheduler.add_engine(EngineSlot(name, KVLedger(10_000, 1), 8))
    for group_id in ("culprit", "other"):
        scheduler.submit(single(1, group_id=group_id))
    chunk, other = scheduler.next_assignment(0.0), scheduler.next_assignment(0.0)
    assert chunk is not None and other is not None
    culprit = chunk.request
    for stalled in ("e0", "e2"):
        assert chunk is not None
        assert (chunk.request, chunk.engine_id) == (culprit, stalled)
        scheduler.set_available(stalled, False)
        error = EngineStalled("no progress", engine_id=stalled)
        scheduler.complete(ChunkResult(chunk=chunk, now=0.0, error=error))
        chunk = scheduler.next_assignment(0.0)
    assert chunk is None, "e1 has room, and a chunk of another request"
    scheduler.complete(ChunkResult(chunk=other, now=0.0, reply=make_reply(CHUNK)))
    trial = take(scheduler)
    assert (trial.request, trial.engine_id) == (culprit, "e1")
    assert scheduler.next_assignment(0.0) is None, "nobody joins it"
