"""What the draft hub receives from the driver: history when a group begins, and its end."""

from array import array
from collections.abc import Callable, Sequence

from typing_extensions import override

from seer_sgl.draft.group_store import SEQUENCES
from seer_sgl.link.hub import DraftSink
from seer_sgl.types import Chunk, Failure, Group, Prompt

from .observer import Observer

HISTORY_FROM = SEQUENCES // 2
# Responses of earlier epochs to a prompt.
Responses = Callable[[Prompt], Sequence["array[int]"]]


class DraftKeeper(Observer):
    """Speaks of groups by their uid: two rollouts may name theirs alike.

    The first chunk of a group brings what is known of its prompt: responses of earlier epochs,
    numbered from HISTORY_FROM on, beyond the requests of a group that may still grow.
    """

    def __init__(self, drafts: DraftSink, history: Responses = lambda _: ()) -> None:
        self._drafts = drafts
        self._history = history
        self._begun: set[str] = set()  # by uid

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        group = chunk.request.group
        if group.uid not in self._begun:
            self._begun.add(group.uid)
            for number, response in enumerate(self._history(group.prompt), HISTORY_FROM):
                self._drafts.load(group.uid, number, response)

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        if group.uid in self._begun:
            self._begun.discard(group.uid)
            self._drafts.done(group.uid)
