"""An engine with a replica, on a clock of its own."""

from array import array
from collections.abc import Callable

from seer_sgl.draft.group_store import GroupStore
from seer_sgl.draft.hub import Hub
from seer_sgl.draft.messages import (
    Delta,
    ToHub,
    ToReplica,
)
from seer_sgl.draft.replica import Replica, Scope
from tests.draft.fakes import FakeDrafter

PROMPT = [1, 2, 3]
PLENTY = 1 << 20


def delta(group: str, sequence: int, position: int, *tokens: int) -> Delta:
    return Delta(group, sequence, position, array("i", tokens).tobytes())


def tokens_of(hub: Hub, group: str) -> dict[int, list[int]]:
    """Returns the tokens that a hub has of each sequence of a group."""
    found = hub.groups.get(group)
    return {} if found is None else {n: list(log.tokens) for n, log in found.logs.items()}


class Engine:
    """A replica, its Drafter, and the messages that it sends. `send`: where they go instead."""

    def __init__(
        self,
        scope: Scope = "fleet",
        max_tokens: int = PLENTY,
        hub: bool = True,
        send: Callable[[ToHub], None] | None = None,
    ) -> None:
        self.drafter = FakeDrafter()
        self.sent: list[ToHub] = []
        self.now = 0.0
        self.replica = Replica(
            self.drafter,
            (send or self.sent.append) if hub else None,
            max_tokens=max_tokens,
            scope=scope,
            vocab_size=1 << 20,
            clock=lambda: self.now,
        )

    def decode(self, slot: int, *tokens: int) -> None:
        self.drafter.step(slot, tokens)
        self.replica.grown(slot, list(tokens))

    def pass_time(self, seconds: float = 0.1) -> list[ToHub]:
        """Advances the clock and returns the messages sent."""
        self.now += seconds
        self.replica.drain(self.now)
        sent, self.sent[:] = list(self.sent), []
        return sent

    def receive(self, *messages: ToReplica) -> None:
        for message in messages:
            self.replica.received(message)
        self.replica.drain(self.now)

    def index(self, group: str = "g") -> list[list[int]]:
        """Returns the sequences of a group in the Drafter."""
        return sorted(self.drafter.groups.get(group, {}).values())

    @property
    def store(self) -> GroupStore:
        """The groups of the replica."""
        return self.replica._store

    def check(self) -> None:
        """Asserts that the Drafter has the tokens of the replica's logs, within the limit, and that
        the group used longest ago is the next to close."""
        store = self.store
        for group in store.groups.values():
            for log in group.index:
                assert self.drafter.groups[log.home].get(log.index, []) == list(log.tokens)
        assert store.tokens == sum(group.tokens for group in store.groups.values())
        assert store.fits(0)
        assert store.tokens == self.drafter.tokens
        idle = [group.used_at for group in store.groups.values() if not group.running]
        least = store.least_recent(None)
        assert (least and least.used_at) == min(idle, default=None)
