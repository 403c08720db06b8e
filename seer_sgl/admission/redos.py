"""Detects regular expressions that backtrack for long (ReDoS). Pure.

SGLang matches `stop_regex` with Python's `re` in its scheduler, at every token, in the whole
response: a pattern that backtracks for long stops all requests of the engine. The work is estimated
as characters ^ degree * choices, for the worst text.
"""

import functools
import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parser  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import islice
from typing import Any

REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
CHARACTERS = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)
FEW = 16  # repetitions that are counted as choices
# `re.search` begins at each place, so a single repetition of any character has degree 2.
MOST_DEGREE = 2
MOST_CHOICES = 64
COUNTED_CHOICES = 10**9  # beyond, no number is kept: nested repetitions make ones of many gigabytes
MOST_ITEMS = 512  # of a pattern; the reading of nested repetitions would take years
MOST_CHARACTERS = 4096  # of a pattern: reading a megabyte takes seconds
MOST_KNOWN = 1024  # patterns whose judgement is kept: a request that is not divided is read twice
LATIN = [chr(code) for code in range(256)]
CATEGORIES: Mapping[Any, Callable[[str], bool]] = {
    sre.CATEGORY_DIGIT: str.isdecimal,
    sre.CATEGORY_SPACE: str.isspace,
    sre.CATEGORY_WORD: lambda character: character.isalnum() or character == "_",
    sre.CATEGORY_NOT_DIGIT: lambda character: not character.isdecimal(),
    sre.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    sre.CATEGORY_NOT_WORD: lambda character: not (character.isalnum() or character == "_"),
}
# One digit, letter, space and other character that stand for all beyond Latin 1.
BEYOND = "\u0660\u4e00\u3000\u2026"
Characters = frozenset[str]


def redos_risk(pattern: str) -> str | None:
    """Returns why no engine should match a pattern; None if it may."""
    if len(pattern) > MOST_CHARACTERS:
        return f"more than {MOST_CHARACTERS} characters"
    return _risk(pattern)


@functools.lru_cache(MOST_KNOWN)
def _risk(pattern: str) -> str | None:
    try:
        parsed = sre_parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"no regular expression: {error}"
    alphabet = frozenset([*LATIN, *BEYOND, *_literals(parsed)])
    # Each part is compared with each of these.
    left = iter(range(MOST_ITEMS if len(alphabet) <= 2 * MOST_ITEMS else 0))
    work = _Work(alphabet, _cases(alphabet), left)
    try:
        work.sequence(parsed)
    except (_TooLong, RecursionError):
        return (
            f"more than {MOST_ITEMS} parts, those of nested repetitions counted several times, or "
            "too many levels of groups"
        )
    except _Nested:
        return "a repetition of what can match in several ways could take an engine for ever"
    if work.degree > MOST_DEGREE:
        return f"{work.degree - 1} repetitions that can match the same text; 1 is the limit"
    if work.choices > MOST_CHOICES:
        return f"about {work.choices} ways to match one text; {MOST_CHOICES} is the limit"
    return None


class _Nested(Exception):
    """A repetition of something with choices: exponential work."""


class _TooLong(Exception):
    """More than MOST_ITEMS were read."""


class _Work:
    """The degree and the choices of what was read so far. `left`: an entry per item to be read.
    `cases`: by each character, those of the alphabet that it is in some case.

    Two repetitions multiply the work unless their characters differ, or a character must come
    between them that one of them does not match.
    """

    def __init__(
        self, alphabet: Characters, cases: Mapping[str, Characters], left: Iterator[int]
    ) -> None:
        self.degree = 1
        self.choices = 1
        self._alphabet = alphabet
        self._cases = cases
        self._left = left
        self._required: list[Characters] = []  # the characters that must come, in order
        # Each repetition so far, and how many characters must come before its end. The first one is
        # the text before the match.
        self._repeats: list[tuple[Characters, int]] = [(alphabet, 0)]

    def sequence(self, items: Any) -> None:
        """Reads items that follow each other."""
        for kind, value in items:
            entries = len(value) if kind is sre.IN else 1  # a set is as long as its characters
            if len([*islice(self._left, entries)]) < entries:
                raise _TooLong
            if kind in CHARACTERS:
                self._required.append(self._characters(kind, value))
            elif kind in REPEATS:
                self._repeat(*value)
            elif kind is sre.BRANCH:
                self._branch(value[1])
            elif kind is sre.GROUPREF:
                self._many(0, self._alphabet)
            else:
                for part in _parts(value):
                    self.sequence(part)

    def _repeat(self, least: int, most: int, items: Any) -> None:
        inner = _Work(self._alphabet, self._cases, self._left)
        inner.sequence(items)
        if most > FEW:
            if inner.degree > 1 or inner.choices > 1:
                raise _Nested
            self._many(least, self._set_of(items))
            return
        before = len(self._required)
        if inner.degree > 1:
            for _ in range(most):
                self.sequence(items)
        elif least:
            self.sequence(items)
        if not least:
            del self._required[before:]
        ways = self.choices * (most - least + 1) * int(inner.choices) ** most
        self.choices = min(COUNTED_CHOICES, ways)

    def _many(self, least: int, repeated: Characters) -> None:
        if least:
            self._required.append(repeated)
        if any(self._multiply(other, place, repeated) for other, place in self._repeats):
            self.degree += 1
        self._repeats.append((repeated, len(self._required)))

    def _multiply(self, other: Characters, place: int, repeated: Characters) -> bool:
        """Returns whether a text can be split between two repetitions in many ways."""
        apart = other.isdisjoint(repeated) or any(
            required.isdisjoint(other) or required.isdisjoint(repeated)
            for required in self._required[place:]
        )
        return not apart

    def _branch(self, alternatives: Any) -> None:
        """Reads alternatives: the costliest one counts."""
        degree = most_degree = self.degree
        choices = most_choices = self.choices
        place = len(self._required)
        firsts: list[Characters] = []
        for alternative in alternatives:
            self.degree, self.choices = degree, choices
            self.sequence(alternative)
            firsts += self._required[place : place + 1]
            del self._required[place:]
            most_degree = max(most_degree, self.degree)
            most_choices = max(most_choices, self.choices)
        letters = frozenset[str]().union(*firsts)
        each_begins = len(firsts) == len(alternatives)
        apart = each_begins and sum(map(len, firsts)) == len(letters)
        if each_begins:
            self._required.append(letters)
        self.degree = most_degree
        self.choices = most_choices * (1 if apart else len(alternatives))

    def _set_of(self, items: Any) -> Characters:
        """Returns the characters of a repetition of one character; else all."""
        first, *more = [*items] or [(None, None)]
        single = not more and first[0] in CHARACTERS
        return self._characters(*first) if single else self._alphabet

    def _characters(self, kind: Any, value: Any) -> Characters:
        """Returns the characters that an item matches in some case: a pattern may ignore it."""
        matched = _matched(kind, value, self._cases.keys())
        found = frozenset[str]().union(*(self._cases[character] for character in matched))
        if kind is sre.IN and any(item[0] is sre.RANGE and item[1][1] > 255 for item in value):
            found = found.union(BEYOND)
        return found


def _cases(alphabet: Characters) -> Mapping[str, Characters]:
    cases: dict[str, set[str]] = {}
    for character in alphabet:
        for variant in (character, *character.swapcase()):
            cases.setdefault(variant, set()).add(character)
    return {variant: frozenset(found) for variant, found in cases.items()}


def _matched(kind: Any, value: Any, characters: Set[str]) -> Set[str]:
    """Returns which of the characters an item matches."""
    if kind is sre.LITERAL:
        return characters & {chr(value)}
    if kind is sre.NOT_LITERAL:
        return characters - {chr(value)}
    if kind is sre.RANGE:
        return {character for character in characters if value[0] <= ord(character) <= value[1]}
    if kind is sre.CATEGORY:
        return set(filter(CATEGORIES[value], characters))
    if kind is sre.IN:
        negated = value[0][0] is sre.NEGATE
        found = set[str]().union(
            *(_matched(item[0], item[1], characters) for item in value[negated:])
        )
        return characters - found if negated else found
    return characters


def _literals(items: Any) -> set[str]:
    """Returns the literal characters anywhere in a pattern."""
    found = set()
    for kind, value in items:
        if kind is sre.LITERAL:
            found.add(chr(value))
        for part in _parts(value) + ([value] if kind is sre.IN else []):
            found |= _literals(part)
    return found


def _parts(value: Any) -> list[Any]:
    """Returns the patterns inside a group, an assertion or a branch."""
    values = value if isinstance(value, tuple) else (value,)
    parts = []
    for item in values:
        if isinstance(item, sre_parser.SubPattern):
            parts.append(item)
        elif isinstance(item, list):
            parts += [one for one in item if isinstance(one, sre_parser.SubPattern)]
    return parts
