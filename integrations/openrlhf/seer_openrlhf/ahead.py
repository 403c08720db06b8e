"""Prompts that are dispatched ahead of OpenRLHF's loop, so that filtering has no serial tail. Pure.

The loop draws one more prompt for each group that it filters out. `Ahead` stands between the loop
and the dataloader: it keeps `reserve` prompts in progress beyond those that the loop has drawn, and
gives the loop the oldest of them when it draws one. Any group in progress may be the one whose
responses the loop gets next, so groups count in the order of completion.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Responses = list[dict[str, Any]]
Columns = tuple[Sequence[str], Any, Any]


@dataclass(eq=False)
class Prompt:
    """A prompt of the dataloader.

    `place`: in the batch, once it is in progress. `responses`: if it was ready when an earlier
    batch ended, which did not need it.
    """

    prompt: str
    label: Any
    image: Any
    place: int | None = None
    responses: Responses | None = None


class Ahead:
    """The dataloader's iterator as OpenRLHF's loop sees it during a batch.

    `first`: prompts that go first, left over by the last batch. `source`: the real iterator, which
    yields columns: data sources, prompts, labels, images. `reserve`: how many prompts are in
    progress beyond those that the loop has drawn.
    """

    def __init__(self, first: Iterable[Prompt], source: Iterator[Any], reserve: int) -> None:
        self._first = deque(first)
        self._source = source
        self._most = reserve
        self._reserve: deque[Prompt] = deque()
        self._drawn: list[Prompt] = []
        self._placed: list[Prompt] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Returns the next prompt, in the form of the dataloader."""
        found = self._reserve.popleft() if self._reserve else self._next()
        if found is None:
            raise StopIteration
        self._drawn.append(found)
        return [None], [found.prompt], [found.label], [found.image]

    def dispatch(self) -> tuple[list[Prompt], list[Prompt]]:
        """Returns what the loop has drawn since the last call, and what has to be started.

        The second part has the prompts among them, and new ones of the reserve, that are not in
        progress and have no responses.
        """
        drawn, self._drawn = self._drawn, []
        new = [prompt for prompt in drawn if prompt.place is None]
        while len(self._reserve) < self._most and (found := self._next()) is not None:
            self._reserve.append(found)
            new.append(found)
        for prompt in new:
            prompt.place = len(self._placed)
            self._placed.append(prompt)
        return drawn, [prompt for prompt in new if prompt.responses is None]

    def left_over(self, left: Mapping[int, Responses | None]) -> list[Prompt]:
        """Returns the prompts that the batch did not use; their places are None again.

        `left`: those that were started and did not count, by place, with their responses if they
        were ready.
        """
        placed = [
            replace(prompt, place=None, responses=prompt.responses or left.get(prompt.place or 0))
            for prompt in self._placed
            if prompt.place in left or (prompt in self._reserve and prompt.responses is not None)
        ]
        return [*placed, *self._first]

    def _next(self) -> Prompt | None:
        if not self._first:
            columns = next(self._source, None)
            if columns is None:
                return None
            _, *columns = columns
            self._first.extend(Prompt(*row) for row in zip(*columns, strict=True))
        return self._first.popleft()


def reserve_of(prompts: int, over_sampling: float) -> int:
    """Returns how many prompts are in progress beyond those that a batch needs."""
    return math.ceil(round(prompts * (over_sampling - 1), 6))  # 1.1 times 10 is 11 and not 12


def places_of(prompts: Iterable[Prompt]) -> list[int]:
    """Returns the places of prompts that are in progress."""
    return [prompt.place for prompt in prompts if prompt.place is not None]


def columns_of(prompts: Sequence[Prompt]) -> Columns:
    """Returns prompts as OpenRLHF passes them on: prompts, labels, images."""
    texts = [prompt.prompt for prompt in prompts]
    return texts, [prompt.label for prompt in prompts], [prompt.image for prompt in prompts]
