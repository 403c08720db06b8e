"""What the draft hub hears from the rollout: history when a group begins, and when it is over."""

from array import array
from collections.abc import Callable, Sequence

from seer_sgl.link.hub import Drafts
from seer_sgl.types import Chunk, Group, Prompt, Request

from .loop import Observer

# Responses of earlier epochs to a prompt.
Responses = Callable[[Prompt], Sequence["array[int]"]]


class DraftKeeper(Observer):
    """Speaks of groups by their uid: two rollouts may name theirs alike.

    Responses of earlier epochs are sequences n, n + 1, ... of a group of n requests.
    """

    def __init__(self, drafts: Drafts, history: Responses = lambda _: ()) -> None:
        self._drafts = drafts
        self._history = history
        self._begun: set[str] = set()  # by uid

    def sent(self, chunk: Chunk, now: float) -> None:
        """A chunk went to its engine; the first of its group brings what is known of its prompt."""
        group = chunk.request.group
        if group.uid not in self._begun:
            self._begun.add(group.uid)
            first = len(group.requests)
            for number, response in enumerate(self._history(group.prompt), first):
                self._drafts.load(group.uid, number, response)

    def finished(self, request: Request) -> None:
        """A request is complete."""
        if request.group.finished:
            self._over(request.group)

    def given_up(self, group: Group) -> None:
        """Nothing of the group is sent again."""
        self._over(group)

    def _over(self, group: Group) -> None:
        if group.uid in self._begun:
            self._begun.discard(group.uid)
            self._drafts.done(group.uid)
