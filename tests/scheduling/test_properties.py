"""Invariants: every request ends exactly once, the ledger never over-promises, no request starves.

One script per policy: completions, failures, retractions, reports of foreign load, engines that
join and leave, new groups and withdrawals.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer_sgl.driver.flights import result_of
from seer_sgl.engine_types import EngineLoad
from seer_sgl.errors import ChunkRecalled, EngineUnavailable, RequestRejected
from seer_sgl.sampling import NEUTRAL, Sampling
from seer_sgl.scheduling.context_aware import ContextAware
from seer_sgl.scheduling.engine_index import UNLIMITED, EngineSlot
from seer_sgl.scheduling.ledger import KVLedger
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.scheduling.placement import CacheAware
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.scheduling.strategy import Strategy, make_strategy
from seer_sgl.timing import DEFAULT
from seer_sgl.types import Chunk, ChunkResult, Group, Request, RequestState
from tests.helpers import LEFT, UNDIVIDABLE, make_group, make_reply

POLICIES = [
    "seer",
    "seer_published",
    "fcfs",
    "oracle",
    "group_round_robin",
    "group_least_loaded",
    "request_round_robin",
]
CAPACITY = 200  # tokens; a whole request needs up to 110
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["length", "stop", "length", "abort", "empty abort", "retracted", "lost"],
                *["refused", "refused", "look"],
                *["down", "up", "join", "load", "submit", "withdraw", "stored", "wait"],
                *["grow", "grow", "no more", "aborted", "recalled", "leave", "new weights"],
                "prefer",
            ]
        ),
        st.integers(0, 10_000),
    ),
    max_size=120,
)


@dataclass
class World:
    """A scheduler, its chunks in flight, and counts of events."""

    scheduler: Scheduler
    undivided: bool
    sampling: Sampling = NEUTRAL
    now: float = 0.0
    groups: list[Group] = field(default_factory=list)
    inflight: list[Chunk] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)  # by request uid
    newest: dict[str, str] = field(default_factory=dict)  # chunk ids by request uid
    aborted: set[str] = field(default_factory=set)  # uids of requests that end with their chunk

    callers: int = 3
    joined: int = 0
    leaving: set[str] = field(default_factory=set)

    def join(self) -> None:
        number, self.joined = self.joined, self.joined + 1
        slot = EngineSlot(f"e{number}", KVLedger(CAPACITY, 1 + 15 * (number % 2)), 4, "pool")
        if self.undivided:
            slot = EngineSlot(f"e{number}", None, UNLIMITED)
        self.scheduler.add_engine(slot)

    def submit(self, n: int) -> None:
        group = make_group(
            f"g{len(self.groups)}", n=n, prompt_len=5 + 2 * (n % 3), sampling=self.sampling
        )
        group.caller = f"caller {len(self.groups) % self.callers}"
        group.growing = len(self.groups) % 4 == 1
        self.groups.append(group)
        self.scheduler.submit(group)

    def grow(self, group: Group) -> None:
        if group.growing and len(group.requests) < 8:
            more = make_group(group.group_id, n=len(group.requests) + 1).requests[-1]
            more.group = group
            self.scheduler.grow(group, [more])
        elif not group.growing:
            with pytest.raises(ValueError, match="does not grow"):
                self.scheduler.grow(group, [])

    def dispatch(self) -> None:
        while (chunk := self.scheduler.next_assignment(self.now)) is not None:
            request = chunk.request
            assert all(other.request is not request for other in self.inflight)
            assert request.state is RequestState.RUNNING
            assert not request.group.withdrawn
            self.inflight.append(chunk)
            self.newest[request.uid] = chunk.rid
        for slot in self.scheduler.engines:
            here = [chunk for chunk in self.inflight if chunk.engine_id == slot.engine_id]
            assert slot.inflight == len(here) <= slot.max_inflight
            if slot.ledger is not None:
                assert 0 <= slot.ledger.used <= slot.ledger.capacity
                assert bool(slot.ledger.used) is bool(here)

    def end(self, event: str, pick: int) -> None:
        chunk = self.inflight.pop(pick % len(self.inflight))
        aborted = chunk.request.uid in self.aborted
        errors = {
            "lost": EngineUnavailable("gone"),
            "refused": RequestRejected("no"),
            "recalled": ChunkRecalled("paused"),
        }
        if event in errors:
            error = errors[event]
            result = ChunkResult(chunk=chunk, now=self.now, error=error, aborted=aborted)
        else:
            share = {"abort": 0.5, "empty abort": 0.0}.get(event, 1.0)
            finish = {"abort": "abort", "empty abort": "abort", "stop": "stop"}.get(event, "length")
            reply = make_reply(int(share * chunk.max_new_tokens), finish)  # type: ignore[arg-type]
            reply.retractions = int(event == "retracted")
            result = result_of(chunk, reply, self.now, aborted=aborted)
        self.scheduler.complete(result)
        assert not aborted or chunk.request.state is RequestState.FINISHED
        self.leave_if_empty()
        self.ended[chunk.request.uid] += chunk.request.state is RequestState.FINISHED

    def leave(self, engine_id: str) -> None:
        if len(list(self.scheduler.engines)) - len(self.leaving) > 1:
            self.scheduler.drain(engine_id)
            self.leaving.add(engine_id)
            self.leave_if_empty()

    def abort(self, request: Request) -> None:
        finished, inflight = request.state is RequestState.FINISHED, request.state
        at_once = self.scheduler.abort(request, self.now)
        assert at_once is (inflight is not RequestState.RUNNING)
        if not at_once:
            self.aborted.add(request.uid)
        if at_once and not finished and not request.group.withdrawn:
            assert request.finish_reason == "abort"
            self.ended[request.uid] += 1

    def leave_if_empty(self) -> None:
        for slot in list(self.scheduler.engines):
            if slot.engine_id in self.leaving and not slot.inflight:
                self.scheduler.remove_engine(slot.engine_id)
                self.leaving.discard(slot.engine_id)

    def step(self, event: str, pick: int) -> None:
        slots = list(self.scheduler.engines)
        engine_id = slots[pick % len(slots)].engine_id
        group = self.groups[pick % len(self.groups)]
        requests = [request for group in self.groups for request in group.requests]
        load = EngineLoad(used_tokens=pick % (2 * CAPACITY), progress=())
        happen: dict[str, Callable[[], object]] = {
            "down": lambda: self.scheduler.set_available(engine_id, False),
            "up": lambda: self.scheduler.set_available(engine_id, True),
            "join": self.join,
            "leave": lambda: self.leave(engine_id),
            "load": lambda: self.scheduler.loaded(engine_id, load),
            "submit": lambda: self.submit(1 + pick % 4),
            "grow": lambda: self.grow(group),
            "no more": lambda: self.scheduler.complete_group(group),
            "aborted": lambda: self.abort(requests[pick % len(requests)]),
            "new weights": self.scheduler.forget_kv,
            "withdraw": lambda: self.scheduler.withdraw(group, LEFT),
            "prefer": lambda: self.scheduler.prefer(group),
            "look": lambda: self.scheduler.elapsed(30.0),
            "wait": lambda: None,
            "stored": lambda: self.scheduler.stored(
                self.newest.get(requests[pick % len(requests)].uid, ""), bool(pick % 3)
            ),
        }
        self.now += DEFAULT.store_patience_s if event == "wait" else 0.01
        if event in happen:
            happen[event]()
        elif self.inflight:
            self.end(event, pick)

    def finish(self) -> None:
        """Completes all requests without failures or new groups."""
        for group in self.groups:
            self.scheduler.complete_group(group)
        for slot in self.scheduler.engines:
            self.scheduler.set_available(slot.engine_id, True)
        for _ in range(100_000):
            self.now += DEFAULT.store_patience_s
            self.dispatch()
            if not self.inflight:
                return
            self.end("length", 0)
        raise AssertionError("it does not come to an end")


def strategy(policy: str) -> Strategy:
    known = KnownLengths()
    for number in range(0, 40, 2):
        for index in range(4):
            length = 10 + 7 * number % 90 + index
            known.add(length, prompt_ids=None, group_id=f"g{number}", index=index)
    return make_strategy(policy, CacheAware(max_spread=1, gap=3), known)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=100, deadline=None)
@given(events=EVENTS, chunk_tokens=st.integers(5, 120), continues=st.booleans())
def test_every_request_ends_exactly_once_and_every_promise_is_taken_back(
    policy: str, events: list[tuple[str, int]], chunk_tokens: int, continues: bool
) -> None:
    chosen = strategy(policy)
    scheduler = Scheduler(
        chunk_tokens,
        divide=not chosen.undivided,
        make_policy=chosen.make_policy,
        placement=chosen.placement,
    )
    world = World(scheduler, chosen.undivided, NEUTRAL if continues else UNDIVIDABLE)
    world.join()
    world.join()
    world.submit(4)
    world.submit(3)
    for event, pick in events:
        world.dispatch()
        world.step(event, pick)
    world.finish()
    for group in world.groups:
        assert group.withdrawn or group.complete
        for request in group.requests:
            assert world.ended[request.uid] == (request.state is RequestState.FINISHED)
            assert request.generated <= request.max_response_len
            assert continues or len(request.engines) <= (request.finish_reason is not None)
    for slot in scheduler.engines:
        assert slot.inflight == 0
        assert slot.ledger is None or slot.ledger.used == 0
    assert scheduler.check() == []
    assert not scheduler._fleet._holders


@settings(max_examples=100, deadline=None)
@given(
    events=st.lists(st.tuples(st.sampled_from(["length", "stop", "lost"]), st.integers(0, 999))),
    guard_every=st.integers(1, 5),
)
def test_no_ready_request_sees_more_dispatches_than_the_bound(
    events: list[tuple[str, int]], guard_every: int
) -> None:
    scheduler = Scheduler(
        7, make_policy=lambda: ContextAware(guard_every=guard_every), patience_s=1e9
    )
    world = World(scheduler, undivided=False, callers=1)
    world.join()
    for n in (4, 4, 4, 4):
        world.submit(n)
    due: dict[Request, int] = {}
    dispatches = 0
    for request in (request for group in world.groups for request in group.requests):
        due[request] = guard_every * (len(due) + 1)
    script = iter(events)
    while due or world.inflight:
        while (chunk := scheduler.next_assignment(0.0)) is not None:
            dispatches += 1
            assert due.pop(chunk.request) >= dispatches
            world.inflight.append(chunk)
        event, pick = next(script, ("stop", 0))
        request = world.inflight[pick % len(world.inflight)].request
        world.end(event, pick)
        if request.state is RequestState.PENDING:
            due[request] = dispatches + guard_every * (len(due) + 1)
