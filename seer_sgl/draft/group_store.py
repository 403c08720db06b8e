"""The groups an engine has in its Drafter, and the tokens of their sequences."""

import random
from array import array
from collections.abc import Sequence
from typing import Protocol

from .messages import MAX_NUMBER, MAX_SEQUENCES

# Numbers of a group's sequences; forks of one differ above these bits, and may be twice as many as
# a group has sequences.
SEQUENCES = MAX_NUMBER // (2 * MAX_SEQUENCES) + 1
FORKS = (MAX_NUMBER + 1) // SEQUENCES


class DraftIndex(Protocol):
    """The part of `Drafter` that is used here."""

    def open(self, group: str, prompt_ids: Sequence[int], /) -> None: ...
    def close(self, group: str, /) -> None: ...
    def append(self, group: str, sequence: int, tokens: "array[int]", /) -> None: ...
    def attach(self, group: str, sequence: int, /) -> int: ...
    def detach(self, slot: int, /) -> None: ...


class Log:
    """One sequence: what it is called on the wire and in the index, and its tokens."""

    __slots__ = ("group", "home", "index", "live", "number", "own", "sent", "tokens")

    def __init__(self, group: "StoredGroup", number: int, index: int, home: str) -> None:
        self.group = group
        self.number = number
        self.index = index  # its sequence number in the index
        self.home = home  # its group there
        self.tokens = array("i")
        self.sent = 0  # tokens the hub has, as far as it is known here
        self.own = False  # some of it was decoded here
        self.live = False  # it is being decoded here


class StoredGroup:
    """One group. `reported`: the hub has been sent that it is served here."""

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
        self.prompts = 1  # how often the index has the prompt
        self.logs: dict[int, Log] = {}  # by number
        self.index: list[Log] = []  # by sequence number in the index
        self.running = 0  # sequences being decoded here
        self.used_at = now
        self.reported = False
        self.ask_at = now  # when the hub may be asked about it again

    def continued(self, sequence: int, response: "array[int]") -> Log | None:
        """The sequence, or the fork of it, that this response is or continues; the longest."""
        best: Log | None = None
        for number, log in self.logs.items():
            known = len(log.tokens)
            fits = number % SEQUENCES == sequence and not log.live
            if fits and (best is None or known > len(best.tokens)):
                best = log if response[:known] == log.tokens else best
        return best

    def free_number(self, sequence: int) -> int:
        """The sequence's own number, or a fork's, which no other engine should draw.

        There are more numbers than a group may have sequences, so one is found soon.
        """
        number = sequence % SEQUENCES
        while number in self.logs:
            number = random.randrange(1, FORKS) * SEQUENCES + sequence % SEQUENCES
        return number

    def renumber(self, log: Log) -> None:
        """Make a log a fork of what it was."""
        number = self.free_number(log.number)
        del self.logs[log.number]
        self.logs[number] = log
        log.number, log.sent = number, 0

    @property
    def tokens(self) -> int:
        """All of them, the prompt's included as often as the index has it."""
        return self.prompts * len(self.prompt_ids) + sum(
            len(log.tokens) for log in self.logs.values()
        )


class GroupStore:
    """All groups of an engine. `max_tokens`: what `fits` compares with.

    `apart`: each sequence is a group of its own in the index and drafts from itself alone.
    """

    def __init__(self, drafter: DraftIndex, max_tokens: int, apart: bool) -> None:
        self._drafter = drafter
        self._max_tokens = max_tokens
        self._apart = apart
        self.groups: dict[str, StoredGroup] = {}
        self.tokens = 0

    def open(self, name: str, prompt_ids: Sequence[int], now: float) -> StoredGroup:
        """The group, opened if it is not."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = StoredGroup(name, array("i", prompt_ids), now)
            self.tokens += len(prompt_ids)
            if not self._apart:
                self._drafter.open(name, group.prompt_ids)
        return group

    def add(self, group: StoredGroup, number: int) -> Log:
        """A new sequence."""
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
        """Prompt tokens that a new sequence brings: each has a copy, the first the group's."""
        return len(group.prompt_ids) if self._apart and group.index else 0

    def append(self, log: Log, tokens: "array[int]") -> None:
        """Tokens that follow, into the index too."""
        if tokens:
            self._drafter.append(log.home, log.index, tokens)
            self.grown(log, tokens)

    def grown(self, log: Log, tokens: Sequence[int]) -> None:
        """Tokens that follow, which are in the index already."""
        log.tokens.extend(tokens)
        self.tokens += len(tokens)

    def close(self, group: StoredGroup) -> None:
        """Forget a group; its slots draft nothing from then on."""
        for home in [log.home for log in group.index] if self._apart else [group.name]:
            self._drafter.close(home)
        self.tokens -= group.tokens
        del self.groups[group.name]

    def fits(self, tokens: int) -> bool:
        """Whether so many more stay within the limit."""
        return self.tokens + tokens <= self._max_tokens

    def idlest(self, keep: StoredGroup | None) -> StoredGroup | None:
        """The group to close first: of those that do not run, the one used longest ago."""
        idle = [group for group in self.groups.values() if not group.running and group is not keep]
        return min(idle, key=lambda group: group.used_at, default=None)

    def dearest(self) -> StoredGroup:
        """If all groups run, the one with the most tokens for each sequence that drafts from it."""
        return max(self.groups.values(), key=lambda group: group.tokens / group.running)
