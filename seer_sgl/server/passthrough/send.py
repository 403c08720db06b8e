"""Sends a request to one engine, and its reply back, both unmodified."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp import web

from seer_sgl.engine.answers import ask
from seer_sgl.engine.client import HttpEngine
from seer_sgl.errors import EngineDied, EngineUnavailable
from seer_sgl.server.explain import MOST_BYTES, explained
from seer_sgl.server.json import dumps
from seer_sgl.server.prefixes import Prefixes

logger = logging.getLogger(__name__)
COPIED = ("Content-Type", "Retry-After")
OWN = "x-sglext-"  # headers with which clients ask SGLang for more in its answer
ABORT_S = 2.0
# SGLang ignores an abort of a request that it is still reading, so that it is sent again.
ABORTS = 5
Find = Callable[[str], HttpEngine | None]


class Passthrough:
    """One such request. Calling it sends it to an engine; the driver does (types.SendUnread).

    `rids`: the names by which an engine ends it; empty: an engine has no names for it that are
    known here. `find` returns an engine by its id. `reason`: why it is not divided.
    `abort_again_s`: after this time an abort is sent again.
    """

    def __init__(
        self,
        http: web.Request,
        body: bytes,
        rids: Sequence[str],
        find: Find,
        *,
        reason: str,
        abort_again_s: float,
    ) -> None:
        self._http = http
        self._body = body
        self._rids = rids
        self._find = find
        self._reason = reason
        self._abort_again_s = abort_again_s
        # Its time runs out when it is aborted before an engine has it.
        self.wait = asyncio.timeout(None)
        self._headers = {
            name: value for name, value in http.headers.items() if name.lower().startswith(OWN)
        }
        self.engine_id: str | None = None  # that has it now
        self.response: web.StreamResponse | None = None  # once a part of the answer was sent
        self.broken = False  # the rest of the answer is lost
        self.ended = False  # its client has the answer, or has left
        self._returned = asyncio.Event()  # no engine has it

    async def __call__(self, engine_id: str) -> None:
        """Sends the request to an engine, and its answer to the client.

        Raises EngineUnavailable if the engine failed before it began to answer. If it then breaks
        off before the first byte, and still lives, it has failed with this request: SGLang raises
        errors of a stream after its header. The client gets 502, and the engine serves the others.
        """
        if self.response is not None:  # it was taken back half-way: the rest is lost
            self.broken = True
            return
        engine = self._find(engine_id)
        if engine is None:
            raise EngineUnavailable(f"engine {engine_id} has left", engine_id=engine_id)
        self.engine_id = engine_id
        self._returned.clear()
        begun = False
        try:
            request = (self._http.method, self._http.path_qs, self._body, self._headers)
            async with engine.send(*request) as answer:
                begun = True
                await self._pass_on(answer)
        except EngineUnavailable as error:
            if self.response is not None:
                self.broken = True
            elif begun and not isinstance(error, EngineDied):
                message = f"the engine broke off its answer to this request ({self._reason})"
                body = dumps({"error": {"message": message}})
                self.response = web.Response(
                    body=body, status=HTTPStatus.BAD_GATEWAY, content_type="application/json"
                )
            else:
                raise
        except Exception:  # a defect ends this request, not the driver
            logger.exception("%s was not passed on", self._http.path_qs)
            self.broken = True
        finally:
            self.engine_id = None
            self._returned.set()

    async def _pass_on(self, answer: aiohttp.ClientResponse) -> None:
        own: bytes | None = None
        if _is_short_error(answer):
            first = await answer.read()
            own = explained(answer.status, first, self._reason)
        else:
            first = await answer.content.readany()
        response = web.StreamResponse(status=answer.status)
        for name in COPIED:
            if name in answer.headers:
                response.headers[name] = answer.headers[name]
        if own is not None:
            response.headers["Content-Type"], first = "application/json", own
        self.response = response
        with contextlib.suppress(ConnectionError):  # the client has left
            await response.prepare(self._http)
            piece = first
            while piece:
                await response.write(piece)
                piece = await answer.content.readany()

    @property
    def served(self) -> bool:
        """Whether its client has a whole answer that is no error."""
        status = None if self.response is None else self.response.status
        return not self.broken and status is not None and status < HTTPStatus.BAD_REQUEST

    def named(self, named: Prefixes) -> bool:
        """Returns whether an abort of these names ends it."""
        return named.match("") or any(map(named.match, self._rids))

    async def abort(self, named: Prefixes) -> None:
        """Ends it: the engine that has it answers with the tokens so far.

        Returns when that answer was passed on, after ABORTS waits at the latest.
        """
        calls: list[dict[str, Any]] = [{"rid": rid} for rid in self._rids if named.match(rid)]
        for _ in range(ABORTS):
            engine = None if self.engine_id is None else self._find(self.engine_id)
            if engine is None:
                unanswered = self.response is None and not self.ended
                if unanswered and not self.wait.expired():
                    self.wait.reschedule(asyncio.get_running_loop().time())
                return
            with contextlib.suppress(EngineUnavailable):
                for body in calls or [{"abort_all": True}]:
                    await ask(engine, "POST", "/abort_request", dumps(body), within_s=ABORT_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._abort_again_s):
                    await self._returned.wait()


def _is_short_error(answer: aiohttp.ClientResponse) -> bool:
    size = answer.content_length
    return answer.status >= HTTPStatus.BAD_REQUEST and size is not None and size <= MOST_BYTES
