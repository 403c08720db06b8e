"""The engine's end of grouped drafting: feeds the index, and sends the hub what was decoded here.

Everything but `received` and `connected` belongs to SGLang's scheduler thread and costs it
microseconds a step. Losing a message loses drafts, never tokens: `Open` makes it good later.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from .group_store import SEQUENCES, DraftIndex, GroupStore, Log, StoredGroup
from .messages import (
    MAX_NUMBER,
    MAX_SEQUENCES,
    TOKEN_BYTES,
    Delta,
    Deltas,
    Done,
    Leave,
    Open,
    ToHub,
    ToReplica,
    Want,
    batched,
    grouped,
    pieces,
    wire_name,
)
from .waits import Waits

# Who has written a draft: the prompt, the request itself, a sibling that was decoded here, at least
# in part, or one that was decoded elsewhere or in an earlier epoch.
Source = Literal["prompt", "own", "here", "elsewhere"]
Scope = Literal["request", "engine", "fleet"]
FLUSH_S = 0.05  # between two frames of own tokens: two or three decode steps
HOUSEKEEPING_S = 1.0
IDLE_S = 30.0  # after its last sequence here ended a group is worth no traffic
RESYNC_S = 10.0  # heals what was lost without a trace: the end of a sequence
ASK_S = 0.5  # between two questions about one group: what was asked for needs time to come
DRAIN_TOKENS = 2048  # put into the index by one `drain`: a millisecond or less
DELTA_TOKENS = 16  # that a delta costs beside its tokens
MAX_WAITING = 16 << 20  # bytes that have arrived and wait for `drain`


class Replica:
    """Owns what a Drafter contains.

    send: hands a message for the hub to the link, without blocking; None: there is no hub.
    max_tokens: of all groups together, prompts included, after every call of a method; the least
    recently used idle groups are closed first, then running ones, which draft nothing until their
    next call. Messages that wait for `drain` are not among them (MAX_WAITING). scope: `fleet`
    drafts from all siblings, `engine` from those decoded here (and earlier epochs), `request` from
    the sequence itself alone. vocab_size: tokens from elsewhere that are not below it are refused.
    clock: the one `drain` is given the time of.
    """

    def __init__(
        self,
        drafter: DraftIndex,
        send: Callable[[ToHub], None] | None,
        *,
        max_tokens: int,
        scope: Scope = "fleet",
        vocab_size: int = MAX_NUMBER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drafter = drafter
        self._send = send
        self._scope = scope
        self._vocab_size = vocab_size
        self._clock = clock
        self._held = GroupStore(drafter, max_tokens, apart=scope == "request")
        self._rows: dict[int, Log] = {}  # by slot
        self._grown: dict[Log, None] = {}  # with tokens the hub has not been sent
        self._to_open: dict[StoredGroup, None] = {}
        self._now = 0.0
        self._flush_at = self._clean_at = self._resync_at = 0.0
        # The link's thread appends here; each counter is written by one thread only.
        self._arrived: deque[tuple[float, ToReplica]] = deque()  # and when
        self._bytes_in = self._bytes_out = 0
        self._connected = self._overflowed = False
        self._pending: deque[Delta] = deque()  # of one message, to be put into the index
        self._pending_since = 0.0
        self._waits = Waits()
        self._received = self._lost = self._refused = 0

    def begin(
        self,
        group: str,
        sequence: int,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
    ) -> int:
        """A `/generate` call of this sequence starts here; its slot in the Drafter.

        response_ids: what earlier calls generated. If something else is known of the sequence (an
        engine that was lost had gone further), this call becomes a fork of it with a number of its
        own, so that the index's state of it is right.
        """
        name = wire_name(group)
        held = self._held.open(name, prompt_ids, self._now)
        if len(held.logs) >= MAX_SEQUENCES:  # somebody gives all calls one name: begin again
            self._close(held)
            held = self._held.open(name, prompt_ids, self._now)
        if not held.reported:
            self._to_open[held] = None
        response, number = array("i", response_ids), sequence % SEQUENCES
        log = held.continued(number, response)
        if log is None:
            log = self._held.add(held, held.free_number(number))
            log.sent = len(response) if log.number == number else 0  # a fork is nowhere else
        elif log.sent >= len(log.tokens):
            log.sent = len(response)  # who decoded the rest sent it; else the hub will ask
        self._held.append(log, response[len(log.tokens) :])
        self._grown[log] = None
        log.live = log.own = True
        held.running += 1
        slot = self._drafter.attach(log.home, log.index)
        self._rows[slot] = log
        self._keep_bound()
        return slot

    def grown(self, slot: int, tokens: Sequence[int]) -> None:
        """Verified tokens of a sequence; `Drafter.step` puts them into the index itself."""
        log = self._rows.get(slot)
        if log is not None:  # else its group is closed
            self._held.grown(log, tokens)
            self._grown[log] = None
            self._keep_bound()

    def end(self, slot: int) -> None:
        """The call is over."""
        log = self._rows.pop(slot, None)
        if log is not None:
            log.live = False
            log.group.running -= 1
            log.group.used_at = self._now
        self._drafter.detach(slot)

    def source(self, slot: int, sequence: int) -> Source:
        """Who wrote what the Drafter ascribes to `sequence`, for the sequence in `slot`."""
        log = self._rows.get(slot)
        if sequence < 0 or log is None:
            return "prompt"
        if log.index == sequence:
            return "own"
        return "here" if log.group.index[sequence].own else "elsewhere"

    def received(self, message: ToReplica) -> None:
        """A message of the hub arrived; from the link's thread, never blocking."""
        size = _size(message)
        if self._bytes_in - self._bytes_out + size > MAX_WAITING:
            self._lost += 1
            self._overflowed = True
            return
        self._bytes_in += size
        self._arrived.append((self._clock(), message))

    def connected(self) -> None:
        """The hub is there, perhaps a new one; from the link's thread."""
        self._connected = True

    def drain(self, now: float) -> None:
        """Once a step: put what has arrived into the index (bounded work), send what is due.

        now: seconds on any steady clock.
        """
        self._now = now
        if self._arrived or self._pending:
            self._take()
        if now < self._flush_at:
            return
        self._flush_at = now + FLUSH_S
        if now >= self._clean_at:
            self._clean_at = now + HOUSEKEEPING_S
            self._keep_house()
        if self._send is not None:
            self._flush(self._send)

    def facts(self) -> dict[str, Any]:
        """Counters, for `/server_info`. `waits`: of messages of tokens, from when they were off the
        socket to when the last token was in the index."""
        return {
            "groups": len(self._held.groups),
            "tokens": self._held.tokens,
            "received_tokens": self._received,
            "refused_tokens": self._refused,
            "lost_messages": self._lost,
            "waits": self._waits.facts(),
        }

    def _take(self) -> None:
        room = DRAIN_TOKENS
        while room > 0 and (self._pending or self._arrived):
            if not self._pending:
                since, message = self._arrived.popleft()
                room -= self._read(message, since)
                continue
            delta = self._pending.popleft()
            most = room * TOKEN_BYTES
            if len(delta.tokens) > most:
                group, sequence, position = delta.group, delta.sequence, delta.position
                rest = Delta(group, sequence, position + room, delta.tokens[most:])
                self._pending.appendleft(rest)
                delta = Delta(group, sequence, position, delta.tokens[:most])
            room -= self._apply(delta) + DELTA_TOKENS
            if not self._pending:
                self._waits.observe(max(0.0, self._now - self._pending_since))

    def _read(self, message: ToReplica, since: float) -> int:
        """Deal with a message of that time, deltas excepted, which wait; its cost, in tokens."""
        self._bytes_out += _size(message)
        if isinstance(message, Deltas):
            self._pending.extend(message.deltas)
            self._pending_since = since
            return 0
        if isinstance(message, Done):
            for name in message.groups:
                held = self._held.groups.get(name)
                if held is not None:
                    held.reported = False  # the hub needs no Leave for it
                    self._close(held)
            return DELTA_TOKENS * len(message.groups)
        if self._send is not None and self._scope == "fleet":
            for batch in batched(self._wanted(message)):
                self._send(batch)
        return DRAIN_TOKENS  # rare: the hub is new, or something was lost

    def _wanted(self, message: Want) -> Iterator[Delta]:
        for name, lengths in message.groups.items():
            held = self._held.groups.get(name)
            if held is None:
                continue
            self._ask(held)  # the hub may have forgotten that it is served here
            for number, length in lengths.items():
                if number in held.logs:
                    yield from _unsent(held.logs[number], length)

    def _apply(self, delta: Delta) -> int:
        """Put a delta into the index; how many tokens it brought."""
        held = self._held.groups.get(delta.group)
        if held is None or len(delta.tokens) % TOKEN_BYTES:
            return 0
        log = held.logs.get(delta.sequence)
        have = 0 if log is None else len(log.tokens)
        end = delta.position + len(delta.tokens) // TOKEN_BYTES
        if log is not None:
            log.sent = max(log.sent, min(end, have))
        if end <= have:
            return 0
        if log is not None and log.live:
            # The hub knows more of it than the call that decodes it: another call went this way.
            held.renumber(log)
            self._grown[log] = None
            log, have = None, 0
        if delta.position > have:
            self._ask(held)
            return 0
        tokens = array("i")
        tokens.frombytes(delta.tokens[TOKEN_BYTES * (have - delta.position) :])
        if not self._acceptable(held, log, tokens):
            self._refused += len(tokens)
            return 0
        if log is None:
            log = self._held.add(held, delta.sequence)
        self._held.append(log, tokens)
        log.sent = end
        self._received += len(tokens)
        return len(tokens)

    def _acceptable(self, held: StoredGroup, log: Log | None, tokens: "array[int]") -> bool:
        if min(tokens) < 0 or max(tokens) >= self._vocab_size:
            return False
        if log is None and len(held.logs) >= MAX_SEQUENCES:
            return False
        prompt = self._held.prompt_again(held) if log is None else 0
        if not self._make_room(len(tokens) + prompt, keep=held):
            held.ask_at = self._now + IDLE_S  # it would be refused again
            return False
        return True

    def _ask(self, held: StoredGroup) -> None:
        """Something of a group is missing: have the hub look at what there is."""
        if held.reported and self._now >= held.ask_at:
            self._to_open[held] = None

    def _make_room(self, tokens: int, keep: StoredGroup | None = None) -> bool:
        """Close idle groups until so many tokens fit."""
        while not self._held.fits(tokens):
            idlest = self._held.idlest(keep)
            if idlest is None:
                return False
            self._close(idlest)
        return True

    def _keep_bound(self) -> None:
        """Close groups, running ones too, until what is here stays within the limit."""
        while not self._held.fits(0):
            self._close(self._held.idlest(None) or self._held.dearest())

    def _close(self, held: StoredGroup) -> None:
        """Forget a group, running sequences included: they draft nothing from then on."""
        self._leave([held])
        if held.running:
            for slot in [slot for slot, log in self._rows.items() if log.group is held]:
                del self._rows[slot]
        for log in held.index:
            self._grown.pop(log, None)
        self._to_open.pop(held, None)
        self._held.close(held)

    def _flush(self, send: Callable[[ToHub], None]) -> None:
        if self._scope == "fleet":
            for batch in batched(delta for log in self._grown for delta in _unsent(log, log.sent)):
                send(batch)
        self._grown.clear()
        if self._connected:
            self._connected = False
            self._open_all()
        if self._to_open:
            for groups in grouped((held.name, self._lengths(held)) for held in self._to_open):
                send(Open(groups))
            for held in self._to_open:
                held.reported, held.ask_at = True, max(held.ask_at, self._now + ASK_S)
            self._to_open.clear()

    def _lengths(self, held: StoredGroup) -> dict[int, int]:
        """What is here of each sequence; only what came from the hub where nothing is shared."""
        everything = self._scope == "fleet"
        return {
            number: len(log.tokens)
            for number, log in held.logs.items()
            if everything or not log.own
        }

    def _open_all(self) -> None:
        """Report to the hub what is here of every group that is served."""
        for held in self._held.groups.values():
            if held.reported:
                self._to_open[held] = None

    def _keep_house(self) -> None:
        groups = self._held.groups
        long_ago = self._now - IDLE_S
        self._leave(
            [held for held in groups.values() if not held.running and held.used_at < long_ago]
        )
        if self._overflowed or self._now >= self._resync_at:
            self._overflowed = False
            self._resync_at = self._now + RESYNC_S
            self._open_all()

    def _leave(self, groups: list[StoredGroup]) -> None:
        """Let the hub know that these are served here no longer."""
        reported = [held for held in groups if held.reported]
        for held in reported:
            held.reported = False
            self._to_open.pop(held, None)
        if reported and self._send is not None:
            self._send(Leave([held.name for held in reported]))


def _unsent(log: Log, position: int) -> Iterator[Delta]:
    """What the hub lacks of a sequence, which it will have then."""
    if position < len(log.tokens):
        log.sent = len(log.tokens)
        yield from pieces(log.group.name, log.number, log.tokens, position)


def _size(message: ToReplica) -> int:
    """Bytes of a message, about."""
    if isinstance(message, Deltas):
        return sum(delta.cost for delta in message.deltas)
    return 64 * len(message.groups)
