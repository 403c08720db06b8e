"""The groups an engine has in its Drafter, and the tokens of their sequences."""

import random
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from .messages import MAX_NUMBER, MAX_SEQUENCES

# SEQUENCES numbers for a group's sequences. Forks of a sequence have the same remainder; there are
# twice as many fork numbers as a group may have sequences.
SEQUENCES = MAX_NUMBER // (2 * MAX_SEQUENCES) + 1
FORKS = (MAX_NUMBER + 1) // SEQUENCES
LEAST_TURN = 64  # tokens; fewer may begin two responses by chance
MAX_GROUPS = 1 << 14  # an index takes three pages and its objects, 15 kB, however few its tokens


class DraftIndex(Protocol):
    """The part of `Drafter` that GroupStore and Replica use."""

    def open(self, group: str, prompt_ids: Sequence[int], /) -> None: ...
    def close(self, group: str, /) -> None: ...
    def append(self, group: str, sequence: int, tokens: "array[int]", /) -> None: ...
    def attach(self, group: str, sequence: int, /) -> int: ...
    def detach(self, slot: int, /) -> None: ...


class Log:
    """One sequence: its number on the wire and in the index, and its tokens."""

    __slots__ = ("group", "home", "index", "live", "number", "own", "sent", "tokens")

    def __init__(self, group: "StoredGroup", number: int, index: int, home: str) -> None:
        self.group = group
        self.number = number
        self.index = index  # its sequence number in the index
        self.home = home  # its group in the index
        self.tokens = array("i")
        self.sent = 0  # tokens that this engine assumes the hub to have
        self.own = False  # this engine decoded some of its tokens
        self.live = False  # this engine is decoding it


class StoredGroup:
    """One group. `reported`: this engine has reported to the hub that it serves the group."""

    __slots__ = (
        "ask_at",
        "index",
        "logs",
        "name",
        "prompt_ids",
        "prompts",
        "reported",
        "running",
        "used_at",
    )

    def __init__(self, name: str, prompt_ids: "array[int]", now: float) -> None:
        self.name = name
        self.prompt_ids = prompt_ids
        self.prompts = 1  # copies of the prompt in the index
        self.logs: dict[int, Log] = {}  # by number
        self.index: list[Log] = []  # by sequence number in the index
        self.running = 0  # sequences that this engine is decoding
        self.used_at = now
        self.reported = False
        self.ask_at = now  # seconds; earliest time of the next Open to the hub

    def continued(self, sequence: int, response: "array[int]") -> Log | None:
        """Returns the longest idle log of the sequence or a fork that the response starts with.

        Of a new sequence also that of another: a turn of a conversation has all turns before it.
        """
        best: Log | None = None
        new = sequence not in self.logs
        for number, log in self.logs.items():
            known = len(log.tokens)
            fits = number % SEQUENCES == sequence or (new and known >= LEAST_TURN)
            if fits and not log.live and (best is None or known > len(best.tokens)):
                best = log if response[:known] == log.tokens else best
        return best

    def free_number(self, sequence: int) -> int:
        """Returns the sequence's own number if it is free, else a random number for a fork.

        Random numbers keep engines from choosing the same one. There are more numbers than a group
        may have sequences, so the search is short.
        """
        number = sequence % SEQUENCES
        while number in self.logs:
            number = random.randrange(1, FORKS) * SEQUENCES + sequence % SEQUENCES
        return number

    def renumber(self, log: Log) -> None:
        """Gives a log the number of a fork."""
        number = self.free_number(log.number)
        del self.logs[log.number]
        self.logs[number] = log
        log.number, log.sent = number, 0

    @property
    def tokens(self) -> int:
        """All tokens, with every copy of the prompt in the index."""
        return self.prompts * len(self.prompt_ids) + sum(
            len(log.tokens) for log in self.logs.values()
        )


class GroupStore:
    """All groups of an engine, MAX_GROUPS at most. `max_tokens`: the limit of `fits`.

    `apart`: each sequence is a group of its own in the index and drafts from itself alone.
    """

    def __init__(self, drafter: DraftIndex, max_tokens: int, apart: bool) -> None:
        self._drafter = drafter
        self._max_tokens = max_tokens
        self._apart = apart
        self.groups: dict[str, StoredGroup] = {}
        # Without running sequences, least recently used first.
        self._idle: OrderedDict[StoredGroup, None] = OrderedDict()
        self.tokens = 0

    def open(self, name: str, prompt_ids: Sequence[int], now: float) -> StoredGroup:
        """Returns the group; opens it if it is not open."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = StoredGroup(name, array("i", prompt_ids), now)
            self._idle[group] = None
            self.tokens += len(prompt_ids)
            if not self._apart:
                self._drafter.open(name, group.prompt_ids)
        return group

    def add(self, group: StoredGroup, number: int) -> Log:
        """Adds a sequence."""
        index = len(group.index)
        home = group.name
        if self._apart:
            home = f"{group.name}#{index}"
            self._drafter.open(home, group.prompt_ids)
        if again := self.prompt_again(group):
            group.prompts += 1
            self.tokens += again
        log = group.logs[number] = Log(group, number, index, home)
        group.index.append(log)
        return log

    def prompt_again(self, group: StoredGroup) -> int:
        """Returns the number of prompt tokens that a new sequence copies; 0 for the first one."""
        return len(group.prompt_ids) if self._apart and group.index else 0

    def append(self, log: Log, tokens: "array[int]") -> None:
        """Appends tokens to the log and to the index."""
        if tokens:
            self._drafter.append(log.home, log.index, tokens)
            self.grown(log, tokens)

    def grown(self, log: Log, tokens: Sequence[int]) -> None:
        """Appends tokens that are in the index already."""
        log.tokens.extend(tokens)
        self.tokens += len(tokens)

    def began(self, group: StoredGroup) -> None:
        """Records that this engine begins to decode a sequence of the group."""
        group.running += 1
        self._idle.pop(group, None)

    def ended(self, group: StoredGroup, now: float) -> None:
        """Records that it no longer decodes that sequence."""
        group.running -= 1
        group.used_at = now
        if not group.running:
            self._idle[group] = None

    def close(self, group: StoredGroup) -> None:
        """Removes a group; its slots draft nothing from now on."""
        for home in [log.home for log in group.index] if self._apart else [group.name]:
            self._drafter.close(home)
        self.tokens -= group.tokens
        del self.groups[group.name]
        self._idle.pop(group, None)

    def fits(self, tokens: int) -> bool:
        """Returns whether the groups and this number of additional tokens are within the limits."""
        return len(self.groups) <= MAX_GROUPS and self.tokens + tokens <= self._max_tokens

    def least_recent(self, keep: StoredGroup | None) -> StoredGroup | None:
        """Returns the least recently used group without running sequences, which closes first."""
        return next((group for group in self._idle if group is not keep), None)

    def largest(self) -> StoredGroup:
        """Returns the group with the most tokens per running sequence, if all groups run."""
        return max(self.groups.values(), key=lambda group: group.tokens / group.running)
