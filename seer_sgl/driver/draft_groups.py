"""The driver's messages to the draft hub: the history and the end of each group."""

from array import array
from collections.abc import Callable, Sequence

from typing_extensions import override

from seer_sgl.draft.group_store import SEQUENCES
from seer_sgl.link.contract import MOST_SIBLINGS, draft_group
from seer_sgl.link.hub import HubClient
from seer_sgl.types import Chunk, Failure, Group, Prompt

from .observer import Observer

HISTORY_FROM = SEQUENCES // 2
# Returns the responses of earlier epochs to a prompt.
Responses = Callable[[Prompt], Sequence["array[int]"]]


class DraftKeeper(Observer):
    """Sends the earlier responses and the end of each group to the draft hub.

    Groups are identified by uid, because two rollouts may use the same group id; a very large one
    has several names (`draft_group`). With the first chunk of a group, two kinds of responses are
    sent: the tokens that a journal has restored, and the history, which is the responses of earlier
    epochs to the prompt. The history is numbered from HISTORY_FROM on, beyond the requests of a
    group that may still grow.
    """

    def __init__(self, drafts: HubClient, history: Responses = lambda _: ()) -> None:
        self._drafts = drafts
        self._history = history
        self._begun: set[str] = set()  # by uid

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        group = chunk.request.group
        if group.uid not in self._begun:
            self._begun.add(group.uid)
            for request in group.requests:
                if request.generated:
                    # A copy: the hub's client keeps it, and the response may grow.
                    name = draft_group(group.uid, request.index)
                    self._drafts.load(name, request.index, request.response_ids[:])
            for number, response in enumerate(self._history(group.prompt), HISTORY_FROM):
                for name in _parts(group):
                    self._drafts.load(name, number, response)

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        if group.uid in self._begun:
            self._begun.discard(group.uid)
            for name in _parts(group):
                self._drafts.done(name)


def _parts(group: Group) -> list[str]:
    return [draft_group(group.uid, at) for at in range(0, len(group.requests), MOST_SIBLINGS)]
