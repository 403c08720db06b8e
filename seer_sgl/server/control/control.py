"""What the control calls share: the engines, their order, and calls that outlive their client."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
from aiohttp import web

from seer_sgl.engine.client import HttpEngine
from seer_sgl.server.errors import BadRequest, HttpError, Unavailable
from seer_sgl.server.holds import Holds
from seer_sgl.server.json import json_response
from seer_sgl.server.service import Service

from .fleet_calls import CALL_S, limited

logger = logging.getLogger(__name__)
SESSION = "begin_weight_update"  # the hold until end_weight_update
RELEASED = "release_memory_occupation"  # the hold until all memory is back
Answer = tuple[int, Any]  # HTTP status and JSON
Start = tuple[str, str | None]  # engine id, and the instance of its server
Work = Callable[[web.Request, bytes], Awaitable[Answer]]


class Session(msgspec.Struct):
    """A client's update between begin and end. `engines`: have taken part in all of it so far."""

    engines: dict[str, HttpEngine]
    version: str | None = None


class Control:
    """The engines as the control plane sees them. `mode`: of the pause; None: not paused.

    A call that changes the state of engines holds `lock`.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.lock = asyncio.Lock()
        self.mode: str | None = None
        # Tags of memory, by engine and its start: a server started again has all its memory.
        self.released: dict[Start, set[str]] = {}
        self.groups: dict[str, frozenset[Start]] = {}  # the trainer's process groups, by name
        self.session: Session | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def holds(self) -> Holds:
        """The reasons why nothing is dispatched."""
        return self.service.holds

    @property
    def changing(self) -> bool:
        """Whether an engine that joins now would miss a part of what the others have done."""
        return SESSION in self.holds or self.lacks_memory

    @property
    def lacks_memory(self) -> bool:
        """Whether an engine of the fleet has released memory."""
        self._forget_other_starts()
        return any(self.released.values())

    def released_by(self, engine: HttpEngine) -> set[str]:
        """Returns the tags that an engine has released; to be changed in place."""
        return self.released.setdefault(start_of(engine), set())

    def end_release_if_all_back(self) -> None:
        """Ends the hold of `release_memory_occupation` once no engine lacks memory."""
        if not self.lacks_memory:
            self.holds.end(RELEASED)

    def engines(self) -> list[HttpEngine]:
        """Returns the engines of the fleet. Raises Unavailable if there is none."""
        engines = list(self.service.fleet.engines)
        if not engines:
            raise Unavailable("the fleet has no engine")
        return engines

    def taking_part(self) -> list[HttpEngine]:
        """Returns the engines of the update between begin and end; all engines without one.

        Raises Unavailable if there is none.
        """
        engines = self.engines()
        if self.session is not None:
            engines = [each for each in engines if each.info.engine_id in self.session.engines]
        if not engines:
            raise Unavailable("no engine is left in the weight update")
        return engines

    def ranks(self) -> dict[str, int]:
        """Returns the number of ranks by engine id, in the order of the fleet."""
        return {engine.info.engine_id: engine.info.ranks for engine in self.engines()}

    def handler(self, work: Work) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Returns a handler that does the work to its end, also if its client leaves.

        A half-done control call would leave the engines in different states.
        """

        @functools.wraps(work)
        async def handle(http: web.Request) -> web.Response:
            try:
                status, answer = await self._to_the_end(_answer(work, http, await http.read()))
            except HttpError as error:
                status, answer = error.status, _refusal(error)
            return json_response(answer, status)

        return handle

    def locked(self, work: Work) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Returns the handler of a call that waits for the ones before it.

        The query's `timeout` limits the seconds in which each engine must answer.
        """

        @functools.wraps(work)
        async def one_at_a_time(http: web.Request, body: bytes) -> Answer:
            within_s = _timeout_s(http)
            async with self.lock:
                with limited(within_s):
                    return await work(http, body)

        return self.handler(one_at_a_time)

    async def close(self) -> None:
        """Ends the calls in progress, at the end of the server."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.holds.close()

    def _forget_other_starts(self) -> None:
        present = {start_of(engine) for engine in self.service.fleet.engines}
        for start in [start for start in self.released if start not in present]:
            del self.released[start]

    async def _to_the_end(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, HttpError):
            logger.error("a control call failed: %s", error)


def start_of(engine: HttpEngine) -> Start:
    """Returns the name of an engine and of the newest start of its server."""
    return engine.info.engine_id, engine.info.instance


def _refusal(error: HttpError) -> dict[str, Any]:
    """Returns SGLang's fields of a control call that failed, and those of its other errors."""
    return {"success": False, "message": str(error), "error": {"message": str(error)}}


def _timeout_s(http: web.Request) -> float:
    """Returns the query's `timeout`. Raises BadRequest unless it is above 0 and at most CALL_S."""
    text = http.query.get("timeout")
    if text is None:
        return CALL_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= CALL_S:
        raise BadRequest(f"timeout: {text!r} is not a number above 0 and up to {CALL_S:g}")
    return seconds


async def _answer(work: Work, http: web.Request, body: bytes) -> Answer:
    return await work(http, body)
