"""The KV of conversations on engines that keep it longer than other KV.

An engine with SGLang's `--enable-session-radix-cache` evicts the KV of named sessions last. Each
turn of a conversation is a session of its own, under the uid of its request: its KV includes that
of the turns before it. SGLang marks KV until the session is closed, but it does evict it.
"""

from collections.abc import Mapping

from typing_extensions import override

from seer_sgl.types import Failure, Group, Request, Sample

from .engine import Engine
from .observer import Observer


class SessionCloser(Observer):
    """Closes the session of a turn once the next turn has its KV, or no turn can follow."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines  # by id
        self._closed: dict[str, set[str]] = {}  # uids of requests, by that of their growing group

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        if request.follows is not None:
            for earlier in request.group.requests:
                if earlier.uid == request.follows:
                    self._close(earlier)

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        for request in group.requests:
            self._close(request)
        self._closed.pop(group.uid, None)

    def _close(self, request: Request) -> None:
        engines = [self._engines.get(engine_id) for engine_id in dict.fromkeys(request.engines)]
        keeping = [engine for engine in engines if engine is not None and engine.info.sessions]
        if not request.retain_kv or not keeping:
            return
        closed = self._closed.setdefault(request.group.uid, set())
        if request.uid not in closed:
            closed.add(request.uid)
            for engine in keeping:
                engine.close_session(request.uid)
