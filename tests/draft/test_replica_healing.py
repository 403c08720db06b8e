"""Replica and hub recover from messages that are lost, duplicated or reordered."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer_sgl.draft import replica as replica_module
from seer_sgl.draft.hub import Hub
from seer_sgl.draft.messages import Deltas, Done, Leave, Open, ToHub, ToReplica, Want
from seer_sgl.draft.replica import RESYNC_S
from tests.draft.replicas import PLENTY, PROMPT, Engine, delta, tokens_of


def test_a_gap_is_asked_about_and_not_too_often(engine: Engine) -> None:
    engine.replica.begin("g", 0, PROMPT, [])
    engine.pass_time()
    engine.pass_time(1.0)
    engine.receive(Deltas([delta("g", 1, 3, 5)]))
    assert engine.index() == [[]]
    assert engine.pass_time() == [Open({"g": {0: 0}})]
    engine.receive(Deltas([delta("g", 1, 4, 5)]))
    assert engine.pass_time() == []


def test_what_other_engines_decoded_is_not_sent_unless_the_hub_lacks_it(engine: Engine) -> None:
    slot = engine.replica.begin("g", 0, PROMPT, [5, 6])
    engine.decode(slot, 7)
    assert engine.pass_time() == [Deltas([delta("g", 0, 2, 7)]), Open({"g": {0: 3}})]
    engine.receive(Want({"g": {0: 1, 8: 0}, "unknown": {0: 0}}))
    assert engine.sent == [Deltas([delta("g", 0, 1, 6, 7)])]


def test_what_finds_the_queue_full_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "MAX_WAITING", 2 * delta("g", 1, 0, 7).cost)
    engine = Engine()
    engine.replica.begin("g", 0, PROMPT, [])
    engine.pass_time(5.0)
    for i in range(100):
        engine.replica.received(Deltas([delta("g", 1, i, 7)]))
    assert engine.replica.facts()["lost_messages"] == 98
    assert engine.pass_time(2.0) == [Open({"g": {0: 0, 1: 2}})]


def test_what_has_no_room_is_not_asked_for_at_every_resync() -> None:
    engine, hub = Engine(max_tokens=100), Hub(PLENTY)
    engine.replica.begin("g", 0, PROMPT, [])
    hub.receive("b", Deltas([delta("g", 1, 0, *range(200))]))
    for _ in range(59):
        for message in engine.pass_time(1.0):
            hub.receive("a", message)
        while (answer := hub.take("a")) is not None:
            engine.receive(answer)
    assert engine.replica.facts()["refused_tokens"] == 2 * 200, "IDLE_S apart"


def test_a_wanted_length_counts_as_much_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "MAX_WAITING", 1 << 18)
    small, large = Engine(), Engine()
    for _ in range(1000):
        small.replica.received(Want({"g": {0: 1}}))
    large.replica.received(Want({"g": dict.fromkeys(range(4096), 1)}))
    lost = [engine.replica.facts()["lost_messages"] for engine in (small, large)]
    assert lost == [0, 1], "the large one takes more room than a thousand small ones"


def test_who_is_asked_about_a_group_says_again_that_it_is_served(engine: Engine) -> None:
    engine.decode(engine.replica.begin("g", 0, PROMPT, []), 5)
    engine.pass_time()
    engine.pass_time(2.0)
    for _ in range(3):
        engine.receive(Want({"g": {0: 1}, "unknown": {0: 1}}))
    assert engine.pass_time() == [Open({"g": {0: 1}})]
    engine.receive(Want({"g": {0: 1}}))
    assert engine.pass_time() == [], "but not repeatedly"


class Network:
    """Engines and a hub; frames between them may be lost, duplicated and reordered."""

    def __init__(self, engines: int) -> None:
        self.engines = [Engine() for _ in range(engines)]
        self.hub = Hub(PLENTY)
        self.up: list[tuple[int, ToHub]] = []
        self.down: list[tuple[int, ToReplica]] = []
        self.truth: dict[tuple[str, int], list[int]] = {}
        self.live: dict[tuple[str, int], tuple[int, int]] = {}  # engine and slot
        self.tokens = itertools.count(1)

    def begin(self, engine: int, group: str, sequence: int) -> None:
        if (group, sequence) not in self.live:
            response = self.truth.setdefault((group, sequence), [])
            slot = self.engines[engine].replica.begin(group, sequence, PROMPT, response)
            self.live[group, sequence] = engine, slot

    def decode(self, group: str, sequence: int, count: int) -> None:
        if (group, sequence) in self.live:
            engine, slot = self.live[group, sequence]
            tokens = list(itertools.islice(self.tokens, count))
            self.truth[group, sequence] += tokens
            self.engines[engine].decode(slot, *tokens)

    def end(self, group: str, sequence: int) -> None:
        if (group, sequence) in self.live:
            engine, slot = self.live.pop((group, sequence))
            self.engines[engine].replica.end(slot)

    def flow(self, seconds: float) -> None:
        """Advances the clock and puts the sent messages into the queues."""
        for number, engine in enumerate(self.engines):
            self.up += [(number, message) for message in engine.pass_time(seconds)]
            while (message := self.hub.take(str(number))) is not None:
                self.down.append((number, message))
            engine.check()

    def step(self, seconds: float) -> None:
        """Decodes a token per running call, and sends the due messages."""
        for group, sequence in list(self.live):
            self.decode(group, sequence, 1)
        self.flow(seconds)

    def deliver(self, which: int, fate: str) -> None:
        """Delivers one queued frame once or twice, or drops it."""
        count = len(self.up) + len(self.down)
        if not count:
            return
        which %= count
        queue, which = (
            (self.up, which) if which < len(self.up) else (self.down, which - len(self.up))
        )
        number, message = queue[which] if fate == "twice" else queue.pop(which)
        if fate == "lost":
            return
        if isinstance(message, Open | Leave | Done) or queue is self.up:
            self.hub.receive(str(number), message)  # type: ignore[arg-type]
        else:
            self.engines[number].receive(message)

    def rush(self, fates: list[str]) -> None:
        """Delivers all queued frames, with these fates first."""
        for fate in fates:
            self.deliver(0, fate)
            self.deliver(-1, fate)
        while self.up or self.down:
            self.deliver(0, "arrives")

    def restart(self) -> None:
        """Replaces the hub by an empty one, and drops all queued frames."""
        self.hub = Hub(PLENTY)
        self.up.clear()
        self.down.clear()
        for engine in self.engines:
            engine.replica.connected()

    def heal(self) -> None:
        """Delivers all frames in order until every replica has resynchronized."""
        for _ in range(4 * int(RESYNC_S)):
            self.flow(0.5)
            while self.up or self.down:
                self.deliver(0, "arrives")

    def check_prefixes(self) -> None:
        everywhere = [engine.store.groups for engine in self.engines]
        for groups in everywhere:
            for group in groups.values():
                for number, log in group.logs.items():
                    assert self.truth[group.name, number][: len(log.tokens)] == list(log.tokens)
        for name in ("g", "h"):
            for number, tokens in tokens_of(self.hub, name).items():
                assert self.truth[name, number][: len(tokens)] == list(tokens)

    def check_complete(self) -> None:
        for engine in self.engines:
            for group in engine.store.groups.values():
                if not group.reported:
                    assert not group.running
                    continue
                for (name, number), tokens in self.truth.items():
                    if name == group.name and tokens:
                        assert list(group.logs[number].tokens) == tokens


FATES = ("arrives", "arrives", "twice", "lost")


SEQUENCE = (st.sampled_from("gh"), st.integers(0, 2))


ENGINE = st.integers(0, 2)


ACTION = st.one_of(
    st.tuples(st.just("begin"), ENGINE, *SEQUENCE),
    st.tuples(st.just("decode"), *SEQUENCE, st.integers(1, 4)),
    st.tuples(st.just("decode"), *SEQUENCE, st.integers(1, 4)),
    st.tuples(st.just("end"), *SEQUENCE),
    st.tuples(st.just("step"), st.sampled_from([0.1, 0.1, 2.0])),
    st.tuples(st.just("step"), st.sampled_from([0.1, 0.1, 2.0])),
    st.tuples(st.just("deliver"), st.integers(0, 99), st.sampled_from(FATES)),
    st.tuples(st.just("rush"), st.lists(st.sampled_from(FATES), max_size=8)),
    st.tuples(st.just("rush"), st.lists(st.sampled_from(FATES), max_size=8)),
    st.tuples(st.just("restart")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTION, min_size=20, max_size=80))
def test_replicas_are_prefixes_of_the_truth_and_converge_once_frames_flow(
    actions: list[tuple[object, ...]],
) -> None:
    network = Network(3)
    for name, sequence in itertools.product("gh", range(3)):
        network.begin(sequence, name, sequence)
    for action, *arguments in actions:
        getattr(network, str(action))(*arguments)
        network.check_prefixes()
    for name, sequence in itertools.product("gh", range(3)):
        network.begin(sequence, name, sequence)
    network.heal()
    network.check_prefixes()
    network.check_complete()
