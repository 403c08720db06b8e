"""Releases KV from the pool once no request can read it, so that the pool holds live KV only."""

from collections.abc import Mapping, Sequence

from typing_extensions import override

from seer_sgl.types import Chunk, Failure, Group, Request, RequestState, Sample

from .engine import Engine, PluginLink
from .observer import Observer

SOON = 16  # tokens; most siblings differ sooner


class PageReleaser(Observer):
    """Releases the pool pages of finished requests.

    The message goes to the engine that ran a request last, because its plugin has the names of all
    the request's pages. The pages of a prefix that an unfinished sibling shares stay in the pool.
    While a sibling may still turn out to share the whole response, no page is released. The pages
    of the prompt are left to the pool's own eviction: an engine that holds them would not write
    them a second time.
    """

    def __init__(self, link: PluginLink, engines: Mapping[str, Engine]) -> None:
        self._link = link
        self._engines = engines  # by id
        self._waiting: dict[str, list[Request]] = {}  # finished requests, by group uid

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        # The tokens of the request's last chunk may have made it differ from its siblings.
        self._release(chunk.request.group)

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        if self._holder(request) is not None:
            self._waiting.setdefault(request.group.uid, []).append(request)
            self._release(request.group)

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        if failure is None:
            self._release(group)
            return
        # KV that a chunk in flight stores after this stays in the pool.
        self._waiting.pop(group.uid, None)
        for request in group.requests:
            instance = self._holder(request)
            if instance is not None:
                self._link.forget(instance, request.uid, request.prompt_len)

    def _release(self, group: Group) -> None:
        waiting = self._waiting.get(group.uid)
        # A later sibling may begin with the same tokens, and so may one without any; of many
        # siblings the last ones begin last.
        if group.growing or not waiting or any(map(_is_blank, reversed(group.requests))):
            return
        del self._waiting[group.uid]
        unfinished = [r for r in group.requests if r.state is not RequestState.FINISHED]
        remaining = [request for request in waiting if not self._released(request, unfinished)]
        if remaining:
            self._waiting[group.uid] = remaining

    def _released(self, request: Request, unfinished: Sequence[Request]) -> bool:
        shared = 0
        for sibling in unfinished:
            common = common_prefix(request.response_ids, sibling.response_ids)
            if common == sibling.generated:
                return False
            shared = max(shared, common)
        instance = self._holder(request)
        if instance is not None:
            self._link.forget(instance, request.uid, request.prompt_len + shared)
        return True

    def _holder(self, request: Request) -> str | None:
        """Returns the instance of the server that ran the request last; None without a pool."""
        if not request.engines:
            return None
        engine = self._engines.get(request.engines[-1])
        if engine is None:  # the engine left the fleet; the pool evicts its pages itself
            return None
        return engine.info.instance if engine.info.pool is not None else None


def _is_blank(request: Request) -> bool:
    return not request.generated and request.state is not RequestState.FINISHED


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the number of leading tokens that both sequences share."""
    low, high = 0, min(len(first), len(second))
    if first[:SOON] != second[:SOON]:
        high = min(high, SOON)
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
