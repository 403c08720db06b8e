"""The draft hub: the tokens of every group, for all engines that serve it (paper section 3, DGDS).

A pure state machine: no I/O, no clock. It keeps the token log of each sequence and, per peer, the
number of its tokens that the peer has. There is no send queue: a slow reader costs one number per
sequence, and `take` builds the messages that it lacks.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from .messages import (
    DELTA_BYTES,
    FRAME_BYTES,
    MAX_ENTRIES,
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
    named,
)

MAX_GROUPS = 1 << 16
MAX_DONE = 1 << 17  # names of finished groups that are kept
MAX_WANTS = 1 << 16  # sequences requested from a peer, not yet taken; Open repeats the request
LOG_TOKENS = 128  # extra tokens that an open sequence counts for: about 500 bytes


class _Log:
    """The tokens of one sequence, and the number of them that each peer of the group has."""

    __slots__ = ("group", "known", "newest", "sequence", "tokens")

    def __init__(self, group: str, sequence: int) -> None:
        self.group = group
        self.sequence = sequence
        self.tokens = array("i")
        self.known: dict[_Peer, int] = {}
        self.newest: Delta | None = None  # the last short one: most peers lack the same tokens

    def from_(self, position: int, most: int) -> Delta:
        """Returns at most `most` tokens from `position` on."""
        end = min(len(self.tokens), position + most)
        newest = self.newest
        if newest is None or newest.position != position or newest.end != end:
            tokens = self.tokens[position:end].tobytes()
            newest = Delta(self.group, self.sequence, position, tokens)
            if end - position <= LOG_TOKENS:  # a longer one is memory that nothing counts
                self.newest = newest
        return newest


class _Group:
    """A group's logs, and the peers that serve it."""

    __slots__ = ("logs", "name", "peers", "tokens")

    def __init__(self, name: str) -> None:
        self.name = name
        self.tokens = 0  # with LOG_TOKENS per sequence
        self.logs: dict[int, _Log] = {}
        self.peers: dict[_Peer, None] = {}


class _Peer:
    """An engine: the groups it serves and the messages to send to it."""

    __slots__ = ("behind", "done", "groups", "serves", "wants")

    def __init__(self) -> None:
        self.serves = False  # it has opened a group at some time; a driver never does
        self.groups: dict[str, _Group] = {}
        self.behind: dict[_Log, None] = {}  # logs that may have tokens it lacks
        self.wants: dict[tuple[str, int], int] = {}
        self.done: dict[str, None] = {}


class Hub:
    """The state of the hub: `receive` handles messages of peers, `take` returns messages to them.

    `max_tokens` limits all logs together. Groups without peers are dropped first, then groups with
    peers; in both cases the least recently used first. `groups`: by name, the least recently used
    one first. No message of a peer raises an error: `refused` counts the invalid ones.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.tokens = 0  # with LOG_TOKENS per sequence
        self.refused = self.tokens_in = self.tokens_out = self.groups_begun = 0
        self.groups: OrderedDict[str, _Group] = OrderedDict()
        self._unserved: OrderedDict[str, None] = OrderedDict()  # groups without peers, same order
        self._unserved_tokens = 0
        self._peers: dict[str, _Peer] = {}
        self._done: OrderedDict[str, None] = OrderedDict()

    def facts(self) -> dict[str, Any]:
        """Returns the current size, and counters of groups, new tokens in, and tokens sent."""
        return {
            "groups": len(self.groups),
            "tokens": self.tokens,
            "groups_begun": self.groups_begun,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "refused": self.refused,
        }

    def receive(self, peer: str, message: ToHub) -> None:
        """Handles a message of a peer."""
        sender = self._peers.get(peer)
        if sender is None:
            sender = self._peers[peer] = _Peer()
        if isinstance(message, Deltas):
            for delta in message.deltas:
                self._extend(sender, delta)
        elif isinstance(message, Open):
            self._open(sender, message)
        elif isinstance(message, Leave):
            for group in message.groups:
                self._leave(sender, group)
        elif isinstance(message, Done):
            for group in message.groups:
                self.done(group)

    def left(self, peer: str) -> None:
        """Removes a peer that is gone. Its tokens stay."""
        gone = self._peers.pop(peer, None)
        if gone is not None:
            for group in list(gone.groups):
                self._leave(gone, group)

    def done(self, name: str) -> None:
        """Drops a group that is complete or abandoned, and notifies the peers that serve it."""
        self._done[name] = None
        self._done.move_to_end(name)
        if len(self._done) > MAX_DONE:
            self._done.popitem(last=False)
        for peer in self._drop(name):
            peer.done[name] = None

    def pending(self, peer: str) -> bool:
        """Returns whether `take` may have a message for a peer."""
        receiver = self._peers.get(peer)
        return receiver is not None and bool(receiver.behind or receiver.wants or receiver.done)

    def take(self, peer: str) -> ToReplica | None:
        """Returns the next message to a peer, of at most FRAME_BYTES; None if there is none."""
        receiver = self._peers.get(peer)
        if receiver is None:
            return None
        if receiver.done:
            names = next(named(receiver.done))
            for name in names:
                del receiver.done[name]
            return Done(names)
        if receiver.wants:
            return _wanted(receiver)
        deltas = _behind(receiver)
        self.tokens_out += sum(len(delta.tokens) for delta in deltas) // TOKEN_BYTES
        return Deltas(deltas) if deltas else None

    def _open(self, peer: _Peer, message: Open) -> None:
        lacking: list[tuple[str, int, int, int]] = []
        peer.serves = True
        for name, lengths in message.groups.items():
            if name in self._done:
                peer.done[name] = None
                continue
            group = self._group(name)
            self._serve(peer, group)
            for sequence, log in group.logs.items():
                log.known[peer] = known = min(lengths.get(sequence, 0), len(log.tokens))
                if known < len(log.tokens):
                    peer.behind[log] = None
            for sequence, there in lengths.items():
                peer.wants.pop((name, sequence), None)  # requested again below if needed
                log_here = group.logs.get(sequence)
                have = 0 if log_here is None else len(log_here.tokens)
                if there > have:
                    lacking.append((name, sequence, have, there))
        self._want(peer, lacking)

    def _serve(self, peer: _Peer, group: _Group) -> None:
        if not group.peers:
            del self._unserved[group.name]
            self._unserved_tokens -= group.tokens
        group.peers[peer] = None
        peer.groups[group.name] = group

    def _leave(self, peer: _Peer, name: str) -> None:
        group = peer.groups.pop(name, None)
        if group is None:
            return
        del group.peers[peer]
        for log in group.logs.values():
            log.known.pop(peer, None)
            peer.behind.pop(log, None)
        if group.peers or self.groups.get(name) is not group:
            return
        if group.logs:
            self._unserved[name] = None
            self._unserved_tokens += group.tokens
        else:
            del self.groups[name]

    def _want(self, peer: _Peer, lacking: Iterable[tuple[str, int, int, int]]) -> None:
        """Requests missing tokens from a peer while there is room for them.

        lacking: (group, sequence, tokens here, tokens there). A request must never displace groups
        that have peers.
        """
        room = self.max_tokens - self.tokens + self._unserved_tokens
        for group, sequence, have, there in lacking:
            missing = there - have + LOG_TOKENS
            if missing <= room and len(peer.wants) < MAX_WANTS:
                peer.wants[group, sequence] = have
                room -= missing

    def _extend(self, peer: _Peer, delta: Delta) -> None:
        count, odd = divmod(len(delta.tokens), TOKEN_BYTES)
        end = delta.position + count
        if odd or not count or end > MAX_NUMBER:
            self.refused += 1
            return
        if delta.group in self._done:
            return
        if delta.position and delta.group not in self.groups:
            self._want(peer, [(delta.group, delta.sequence, 0, end)])
            return
        group = self._group(delta.group)
        log = group.logs.get(delta.sequence)
        have = 0 if log is None else len(log.tokens)
        if delta.position > have:
            self._want(peer, [(delta.group, delta.sequence, have, end)])
            return
        if end > have:
            if log is None:
                log = self._new_log(group, delta.sequence, end)
            elif not self._has_room(group, end - have):
                log = None
            if log is None:
                self.refused += 1
                return
            log.tokens.frombytes(delta.tokens[TOKEN_BYTES * (have - delta.position) :])
            self._count(group, end - have)
            self.tokens_in += end - have
            for other in group.peers:
                if other is not peer:
                    other.behind[log] = None
        if log is not None and peer in group.peers:
            log.known[peer] = max(end, log.known.get(peer, 0))
        elif log is not None and peer.serves and len(peer.wants) < MAX_WANTS:
            # It may have opened a group that was dropped since; the request makes it open it again.
            peer.wants[delta.group, delta.sequence] = len(log.tokens)

    def _new_log(self, group: _Group, sequence: int, tokens: int) -> _Log | None:
        if len(group.logs) >= MAX_SEQUENCES or not self._has_room(group, tokens + LOG_TOKENS):
            return None
        log = group.logs[sequence] = _Log(group.name, sequence)
        self._count(group, LOG_TOKENS)
        return log

    def _count(self, group: _Group, tokens: int) -> None:
        group.tokens += tokens
        self.tokens += tokens
        if not group.peers:
            self._unserved_tokens += tokens

    def _group(self, name: str) -> _Group:
        """Returns the group, now the most recently used one."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = _Group(name)
            self.groups_begun += 1
            self._unserved[name] = None
            if len(self.groups) > MAX_GROUPS:
                self._drop(self._least(group))
        else:
            self.groups.move_to_end(name)
            if not group.peers:
                self._unserved.move_to_end(name)
        return group

    def _has_room(self, group: _Group, tokens: int) -> bool:
        """Makes room for tokens of the most recently used group. Returns whether they fit."""
        if group.tokens + tokens > self.max_tokens:
            return False
        while self.tokens + tokens > self.max_tokens:
            self._drop(self._least(group))
        return True

    def _least(self, newest: _Group) -> str:
        """Returns the group to drop first. newest: the most recently used one, which stays."""
        name = next(iter(self._unserved), newest.name)
        return next(iter(self.groups)) if name == newest.name else name

    def _drop(self, name: str) -> Iterable[_Peer]:
        """Drops a group. Returns the peers that served it."""
        group = self.groups.pop(name, None)
        if group is None:
            return ()
        if not group.peers:
            del self._unserved[name]
            self._unserved_tokens -= group.tokens
        served = list(group.peers)
        for peer in served:
            self._leave(peer, name)
        self.tokens -= group.tokens
        return served


def _wanted(peer: _Peer) -> Want:
    """Returns one message of the requests to a peer; the rest stays."""
    groups: dict[str, dict[int, int]] = {}
    names = next(named(group for group, _ in peer.wants))
    for group, sequence in list(peer.wants)[: min(len(names), MAX_SEQUENCES)]:
        groups.setdefault(group, {})[sequence] = peer.wants.pop((group, sequence))
    return Want(groups)


def _behind(peer: _Peer) -> list[Delta]:
    """Returns the tokens that a peer lacks, up to one message; the rest stays."""
    behind, peer.behind = peer.behind, {}
    deltas: list[Delta] = []
    room = FRAME_BYTES
    for log in behind:
        known = log.known.get(peer, 0)
        if known >= len(log.tokens):
            continue
        most = (room - DELTA_BYTES - 4 * len(log.group)) // TOKEN_BYTES
        if most <= 0 or len(deltas) == MAX_ENTRIES:
            peer.behind[log] = None
            continue
        delta = log.from_(known, most)
        deltas.append(delta)
        room -= delta.cost
        log.known[peer] = end = delta.end
        if end < len(log.tokens):
            peer.behind[log] = None
    return deltas
