"""The engine's side of grouped drafting: feeds the index, and sends decoded tokens to the hub.

SGLang's scheduler thread calls all methods except `received` and `connected`; they cost it
microseconds per step. A lost message loses drafts, never tokens, and a later `Open` repairs it.
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
    named,
    pieces,
    wire_name,
)
from .waits import Waits

# The source of a draft: the prompt, the request itself, a sibling that this engine decoded at least
# in part, or a sibling of another engine or an earlier epoch.
Source = Literal["prompt", "own", "here", "elsewhere"]
Scope = Literal["request", "engine", "fleet"]
FLUSH_S = 0.05  # between two frames of own tokens: two or three decode steps
HOUSEKEEPING_S = 1.0
IDLE_S = 30.0  # a group leaves the hub this long after its last sequence here ended
RESYNC_S = 10.0  # repairs losses that nothing else reveals: the end of a sequence
ASK_S = 0.5  # between two Opens of one group: the reply needs time to arrive
DRAIN_TOKENS = 2048  # added to the index per `drain`: a millisecond or less
DELTA_TOKENS = 16  # cost of a delta beside its tokens
MAX_WAITING = 16 << 20  # bytes of received messages that wait for `drain`
LENGTH_BYTES = 100  # of a sequence and its length, in memory


class Replica:
    """Owns the content of a Drafter.

    send: passes a message for the hub to the link, without blocking; None: there is no hub.
    max_tokens: limit of all groups together, prompts included, after every call of a method. The
    least recently used idle groups are closed first, then running ones, which draft nothing until
    their next call. Messages that wait for `drain` are limited separately (MAX_WAITING).
    scope: `fleet` drafts from all siblings, `engine` from siblings decoded here (and earlier
    epochs), `request` from the sequence itself alone.
    vocab_size: received tokens that are not below it are refused.
    clock: must be the clock of the `now` that `drain` receives.
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
        self._store = GroupStore(drafter, max_tokens, apart=scope == "request")
        self._rows: dict[int, Log] = {}  # by slot
        self._grown: dict[Log, None] = {}  # logs with tokens that the hub lacks
        self._to_open: dict[StoredGroup, None] = {}
        self._now = 0.0
        self._flush_at = self._clean_at = self._resync_at = 0.0
        # The link's thread appends to `_arrived`; each counter is written by one thread only.
        self._arrived: deque[tuple[float, ToReplica]] = deque()  # with the time
        self._bytes_in = self._bytes_out = 0
        self._connected = self._overflowed = False
        self._pending: deque[Delta] = deque()  # of one message, to be put into the index
        self._pending_since = 0.0
        self._waits = Waits()
        self._received = self._lost = self._refused = 0

    def begin(
        self,
        group_id: str,
        sequence: int,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
    ) -> int:
        """Starts a `/generate` call of a sequence. Returns its slot in the Drafter.

        response_ids: the tokens of earlier calls. If other tokens of the sequence are known (a lost
        engine had generated more), this call becomes a fork with a number of its own. The index's
        state of the sequence is then correct.
        """
        name = wire_name(group_id)
        group = self._store.open(name, prompt_ids, self._now)
        if len(group.logs) >= MAX_SEQUENCES:  # a caller uses one name for all calls: begin anew
            self._close(group)
            group = self._store.open(name, prompt_ids, self._now)
        if not group.reported:
            self._to_open[group] = None
        response, number = array("i", response_ids), sequence % SEQUENCES
        log = group.continued(number, response)
        if log is None:
            log = self._store.add(group, group.free_number(number))
            log.sent = len(response) if log.number == number else 0  # no other process has a fork
        elif log.sent >= len(log.tokens):
            log.sent = len(response)  # its decoder sent the rest, or the hub requests it
        self._store.append(log, response[len(log.tokens) :])
        self._grown[log] = None
        log.live = log.own = True
        self._store.began(group)
        slot = self._drafter.attach(log.home, log.index)
        self._rows[slot] = log
        self._keep_bound()
        return slot

    def grown(self, slot: int, tokens: Sequence[int]) -> None:
        """Records verified tokens of a sequence; `Drafter.step` puts them into the index itself."""
        log = self._rows.get(slot)
        if log is not None:  # None: its group is closed
            self._store.grown(log, tokens)
            self._grown[log] = None
            self._keep_bound()

    def end(self, slot: int) -> None:
        """Ends the call of a slot."""
        log = self._rows.pop(slot, None)
        if log is not None:
            log.live = False
            self._store.ended(log.group, self._now)
        self._drafter.detach(slot)

    def source(self, slot: int, sequence: int) -> Source | None:
        """Returns the source of the Drafter's `sequence`, seen from the sequence in `slot`.

        `own` is the sequence itself, `here` a sibling on this engine, and `elsewhere` a sibling on
        another engine or of an earlier epoch. None: the call of the slot has ended.
        """
        if sequence < 0:
            return "prompt"
        log = self._rows.get(slot)
        if log is None:
            return None
        if log.index == sequence:
            return "own"
        return "here" if log.group.index[sequence].own else "elsewhere"

    def received(self, message: ToReplica) -> None:
        """Queues a message of the hub without blocking. The link's thread calls it."""
        size = _size(message)
        if self._bytes_in - self._bytes_out + size > MAX_WAITING:
            self._lost += 1
            self._overflowed = True
            return
        self._bytes_in += size
        self._arrived.append((self._clock(), message))

    def connected(self) -> None:
        """Records a connection to the hub, which may be new. The link's thread calls it."""
        self._connected = True

    def drain(self, now: float) -> None:
        """Adds received tokens to the index, up to DRAIN_TOKENS, and sends due messages.

        Call it once per step. now: seconds of the steady clock `clock`.
        """
        self._now = now
        if self._arrived or self._pending:
            self._take()
        if now < self._flush_at:
            return
        self._flush_at = now + FLUSH_S
        if now >= self._clean_at:
            self._clean_at = now + HOUSEKEEPING_S
            self._housekeep()
        if self._send is not None:
            self._flush(self._send)

    def facts(self) -> dict[str, Any]:
        """Returns counters for `/server_info`.

        `waits`: from the receipt of a message of tokens to its last token in the index.
        """
        return {
            "groups": len(self._store.groups),
            "tokens": self._store.tokens,
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
        """Handles a message received at `since`; deltas wait. Returns its cost, in tokens."""
        self._bytes_out += _size(message)
        if isinstance(message, Deltas):
            self._pending.extend(message.deltas)
            self._pending_since = since
            return 0
        if isinstance(message, Done):
            for name in message.groups:
                group = self._store.groups.get(name)
                if group is not None:
                    group.reported = False  # the hub needs no Leave for it
                    self._close(group)
            return DELTA_TOKENS * len(message.groups)
        if self._send is not None and self._scope == "fleet":
            for batch in batched(self._wanted(message)):
                self._send(batch)
        return DRAIN_TOKENS  # rare: the hub is new, or a message was lost

    def _wanted(self, message: Want) -> Iterator[Delta]:
        for name, lengths in message.groups.items():
            group = self._store.groups.get(name)
            if group is None:
                continue
            self._ask(group)  # the hub may have lost that this engine serves it
            for number, length in lengths.items():
                if number in group.logs:
                    yield from _unsent(group.logs[number], length)

    def _apply(self, delta: Delta) -> int:
        """Adds a delta to the index. Returns its number of new tokens."""
        group = self._store.groups.get(delta.group)
        if group is None or len(delta.tokens) % TOKEN_BYTES:
            return 0
        log = group.logs.get(delta.sequence)
        have = 0 if log is None else len(log.tokens)
        end = delta.end
        if log is not None:
            log.sent = max(log.sent, min(end, have))
        if end <= have:
            return 0
        if log is not None and log.live:
            # The hub has more tokens than the running call, so another call has decoded them.
            group.renumber(log)
            self._grown[log] = None
            log, have = None, 0
        if delta.position > have:
            self._ask(group)
            return 0
        tokens = array("i")
        tokens.frombytes(delta.tokens[TOKEN_BYTES * (have - delta.position) :])
        if not self._acceptable(group, log, tokens):
            self._refused += len(tokens)
            return 0
        if log is None:
            log = self._store.add(group, delta.sequence)
        self._store.append(log, tokens)
        log.sent = end
        self._received += len(tokens)
        return len(tokens)

    def _acceptable(self, group: StoredGroup, log: Log | None, tokens: "array[int]") -> bool:
        if min(tokens) < 0 or max(tokens) >= self._vocab_size:
            return False
        if log is None and len(group.logs) >= MAX_SEQUENCES:
            return False
        prompt = self._store.prompt_again(group) if log is None else 0
        if not self._make_room(len(tokens) + prompt, keep=group):
            group.ask_at = self._now + IDLE_S  # the tokens would be refused again
            return False
        return True

    def _ask(self, group: StoredGroup) -> None:
        """Schedules an Open of a group with missing tokens, so that the hub sends them."""
        if group.reported and self._now >= group.ask_at:
            self._to_open[group] = None

    def _make_room(self, tokens: int, keep: StoredGroup | None = None) -> bool:
        """Closes idle groups until the tokens fit. Returns whether they do."""
        while not self._store.fits(tokens):
            least_recent = self._store.least_recent(keep)
            if least_recent is None:
                return False
            self._close(least_recent)
        return True

    def _keep_bound(self) -> None:
        """Closes groups, running ones too, until groups and tokens are within the limits."""
        while not self._store.fits(0):
            self._close(self._store.least_recent(None) or self._store.largest())

    def _close(self, group: StoredGroup) -> None:
        """Removes a group. Its running sequences draft nothing from now on."""
        self._leave([group])
        if group.running:
            for slot in [slot for slot, log in self._rows.items() if log.group is group]:
                del self._rows[slot]
        for log in group.index:
            self._grown.pop(log, None)
        self._to_open.pop(group, None)
        self._store.close(group)

    def _flush(self, send: Callable[[ToHub], None]) -> None:
        if self._scope == "fleet":
            for batch in batched(delta for log in self._grown for delta in _unsent(log, log.sent)):
                send(batch)
        self._grown.clear()
        if self._connected:
            self._connected = False
            self._to_open.update(
                (group, None) for group in self._store.groups.values() if group.reported
            )
        if self._to_open:
            for groups in grouped((group.name, self._lengths(group)) for group in self._to_open):
                send(Open(groups))
            for group in self._to_open:
                group.reported, group.ask_at = True, max(group.ask_at, self._now + ASK_S)
            self._to_open.clear()

    def _lengths(self, group: StoredGroup) -> dict[int, int]:
        """Returns the tokens per sequence; if scope is not `fleet`, only of received sequences."""
        everything = self._scope == "fleet"
        return {
            number: len(log.tokens)
            for number, log in group.logs.items()
            if everything or not log.own
        }

    def _housekeep(self) -> None:
        groups = self._store.groups
        long_ago = self._now - IDLE_S
        self._leave(
            [group for group in groups.values() if not group.running and group.used_at < long_ago]
        )
        if self._overflowed or self._now >= self._resync_at:
            self._overflowed = False
            self._resync_at = self._now + RESYNC_S
            for group in groups.values():
                self._ask(group)

    def _leave(self, groups: list[StoredGroup]) -> None:
        """Reports to the hub that this engine no longer serves these groups."""
        reported = [group for group in groups if group.reported]
        for group in reported:
            group.reported = False
            self._to_open.pop(group, None)
        if self._send is not None:
            for names in named(group.name for group in reported):
                self._send(Leave(names))


def _unsent(log: Log, position: int) -> Iterator[Delta]:
    """Yields the tokens of a sequence that the hub lacks, and marks them as sent."""
    if position < len(log.tokens):
        log.sent = len(log.tokens)
        yield from pieces(log.group.name, log.number, log.tokens, position)


def _size(message: ToReplica) -> int:
    """Returns the approximate bytes of a message."""
    if isinstance(message, Deltas):
        return sum(delta.cost for delta in message.deltas)
    if isinstance(message, Want):
        return sum(64 + LENGTH_BYTES * len(lengths) for lengths in message.groups.values())
    return 64 * len(message.groups)
