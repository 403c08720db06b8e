"""The KV of conversations on engines that keep it longer than other KV.

An engine with SGLang's `--enable-session-radix-cache` evicts the KV of named sessions last. Each
turn of a conversation is a session of its own, under the uid of its request: its KV includes that
of the turns before it. SGLang marks KV until the session is closed, but it does evict it.
"""

from collections.abc import Mapping

import msgspec
from typing_extensions import override

from seer_sgl.types import Chunk, Failure, Group, Request, Sample

from .engine import Engine
from .observer import Observer


class _Turn(msgspec.Struct):
    """An open session: the turn before it, and the engines that may have its KV, in order."""

    follows: str | None
    engines: dict[str, None] = {}


class SessionCloser(Observer):
    """Closes the sessions of earlier turns once a turn has its whole KV, and all of a group's when
    no turn can follow. SGLang ignores KV that arrives after the end of its session."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines  # by id
        self._open: dict[str, dict[str, _Turn]] = {}  # by the uids of group and request

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        request, engine = chunk.request, self._engines.get(chunk.engine_id)
        if request.retain_kv and engine is not None and engine.info.sessions:
            turns = self._open.setdefault(request.group.uid, {})
            turn = turns.setdefault(request.uid, _Turn(request.follows))
            turn.engines[chunk.engine_id] = None

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        turns = self._open.get(request.group.uid)
        if turns is None or request.failure is not None or request.finish_reason == "abort":
            return
        earlier = request.follows
        while earlier is not None and (turn := turns.pop(earlier, None)) is not None:
            self._close(earlier, turn)
            earlier = turn.follows

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        for uid, turn in self._open.pop(group.uid, {}).items():
            self._close(uid, turn)

    def _close(self, uid: str, turn: _Turn) -> None:
        for engine_id in turn.engines:
            engine = self._engines.get(engine_id)
            if engine is not None:
                engine.close_session(uid)
