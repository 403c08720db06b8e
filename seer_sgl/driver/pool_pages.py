"""KV that nobody will read again leaves the pool, so that its size follows what is in flight."""

from array import array
from collections.abc import Mapping

from seer_sgl.link.server import LinkServer
from seer_sgl.types import Chunk, Group, Request, RequestState

from .engine import Engine
from .loop import Observer


class PageReleaser(Observer):
    """Tells the engine that ran a finished request last: it knows the names of all its pages.

    Pages that an unfinished sibling shares stay: a beginning they have in common. While a sibling
    may still turn out to begin alike, nothing is released. The pages of the prompt are left to the
    pool's own eviction: an engine that holds them would not write them a second time.
    """

    def __init__(self, link: LinkServer, engines: Mapping[str, Engine]) -> None:
        self._link = link
        self._engines = engines  # by id
        self._waiting: dict[str, list[Request]] = {}  # finished ones, by group uid

    def sent(self, chunk: Chunk, now: float) -> None:
        """A request goes on, with the tokens of its last chunk: it may have told itself apart."""
        self._release(chunk.request.group)

    def finished(self, request: Request) -> None:
        """A request is complete."""
        if self._holder(request) is not None:
            self._waiting.setdefault(request.group.uid, []).append(request)
            self._release(request.group)

    def given_up(self, group: Group) -> None:
        """Nobody goes on with the group. What a chunk in flight still stores stays there."""
        self._waiting.pop(group.uid, None)
        for request in group.requests:
            instance = self._holder(request)
            if instance is not None:
                self._link.forget(instance, request.uid, request.prompt_len)

    def _release(self, group: Group) -> None:
        waiting = self._waiting.pop(group.uid, [])
        still = [request for request in waiting if not self._released(request, group)]
        if still:
            self._waiting[group.uid] = still

    def _released(self, request: Request, group: Group) -> bool:
        shared = 0
        for sibling in group.requests:
            if sibling.state is not RequestState.FINISHED:
                common = common_prefix(request.response_ids, sibling.response_ids)
                if common == sibling.generated:
                    return False
                shared = max(shared, common)
        instance = self._holder(request)
        if instance is not None:
            self._link.forget(instance, request.uid, request.prompt_len + shared)
        return True

    def _holder(self, request: Request) -> str | None:
        """The instance of the server that ran the request last, if it has a pool."""
        if not request.engines:
            return None
        info = self._engines[request.engines[-1]].info
        return info.instance if info.pool is not None else None


def common_prefix(first: "array[int]", second: "array[int]") -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
