"""KV that nobody will read again leaves the pool, so that its size follows what is in flight."""

from collections.abc import Iterable

from seer_sgl.engine.link import LinkServer
from seer_sgl.types import EngineInfo, Request

from .loop import Observer


class PageReleaser(Observer):
    """Tells the engine that ran a finished request last: it knows the names of all its pages.

    The pages of the prompt stay for the siblings and go with the last of them.
    """

    def __init__(self, link: LinkServer, engines: Iterable[EngineInfo]) -> None:
        self._link = link
        self._instances = {
            info.engine_id: info.instance for info in engines if info.pool is not None
        }

    def finished(self, request: Request) -> None:
        """A request is complete."""
        instance = self._instances.get(request.engines[-1]) if request.engines else None
        if instance is not None:
            keep = 0 if request.group.finished else request.prompt_len
            self._link.forget(instance, request.uid, keep)
