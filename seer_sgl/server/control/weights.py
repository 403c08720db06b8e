"""Weight updates: the same calls on every engine, and the engines that missed one are stale."""

import asyncio
import logging
from collections.abc import Iterable, Mapping

import msgspec
from aiohttp import web

from seer_sgl.engine.client import HttpEngine
from seer_sgl.server.errors import BadRequest

from .bodies import Fields, field, read_fields, tensor_bodies
from .control import SESSION, Answer, Control
from .fleet_calls import call_all, until_idle
from .replies import EngineReply, Replies, combined, failed_of, named
from .taking_part import let_serve, open_session, still, succeeded

logger = logging.getLogger(__name__)
UPDATE = "a weight update"


class _Session(msgspec.Struct):
    """A client's update between begin and end. `engines`: have taken part in all of it so far."""

    engines: dict[str, HttpEngine]
    version: str | None = None


class WeightUpdates:
    """The handlers of the weight updates. Nothing is dispatched while weights change."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._session: _Session | None = None

    async def begin(self, _: web.Request, body: bytes) -> Answer:
        """Opens a session on every engine; nothing is dispatched until `end`."""
        control = self._control
        read_fields(body)
        if self._session is not None:
            raise BadRequest(
                "a weight-update session is already open; call end_weight_update() first"
            )
        engines = control.engines()
        await control.holds.begin(SESSION)
        try:
            replies = await self._opened(engines, body or b"{}")
            took_part = succeeded(engines, replies)
            if took_part:
                self._session = _Session(took_part)
        finally:
            if self._session is None:
                control.holds.end(SESSION)
        return self._answer(replies)

    async def end(self, _: web.Request, body: bytes) -> Answer:
        """Closes the session. An engine that missed a part of it is stale."""
        control, session = self._control, self._session
        read_fields(body)
        if session is None:
            raise BadRequest("no weight-update session is open; call begin_weight_update() first")
        engines = control.engines()
        try:
            replies = await call_all(engines, "POST", "/end_weight_update", body or b"{}")
            ended = succeeded(engines, replies)
            took_part = {name: each for name, each in session.engines.items() if name in ended}
            replies = {name: replies[name] for name in session.engines if name in replies}
            await let_serve(control.service, took_part, session.version)
        finally:
            self._session = None
            control.holds.end(SESSION)
        return self._answer(replies)

    async def from_disk(self, _: web.Request, body: bytes) -> Answer:
        """Loads weights from a folder that every engine sees."""
        return await self._whole("/update_weights_from_disk", body)

    async def from_ipc(self, _: web.Request, body: bytes) -> Answer:
        """Loads weights through the handles of the checkpoint engine."""
        return await self._whole("/update_weights_from_ipc", body)

    async def from_distributed(self, _: web.Request, body: bytes) -> Answer:
        """Receives weights that the trainer broadcasts to its process group."""
        fields = read_fields(body)
        bodies = dict.fromkeys(self._control.ranks(), body)
        path = "/update_weights_from_distributed"
        return await self._update(path, fields, bodies, in_session=True, collective=True)

    async def from_tensor(self, _: web.Request, body: bytes) -> Answer:
        """Loads serialized tensors: one entry per rank of the fleet."""
        fields = read_fields(body)
        bodies = tensor_bodies(fields, self._control.ranks())
        return await self._update("/update_weights_from_tensor", fields, bodies, in_session=True)

    async def rename(self, _: web.Request, body: bytes) -> Answer:
        """Gives the weights another version, on every engine."""
        control = self._control
        fields = read_fields(body)
        version = field(fields, "new_version", str, "")
        if not version:
            raise BadRequest("new_version: missing")
        if field(fields, "abort_all_requests", bool, True):
            await control.service.abort("")
        engines = control.engines()
        async with control.holds.during(UPDATE):
            replies = await call_all(engines, "POST", "/update_weight_version", body)
            took_part = succeeded(engines, replies)
            if self._session is not None:
                self._session.version = version
            elif took_part:
                stale = control.service.driver.stale
                current = {name: each for name, each in took_part.items() if name not in stale}
                await let_serve(control.service, current, version, loaded=False)
        return self._answer(replies)

    async def _whole(self, path: str, body: bytes) -> Answer:
        """Makes an update that needs no session."""
        fields = read_fields(body)
        bodies = dict.fromkeys(self._control.ranks(), body)
        return await self._update(path, fields, bodies, in_session=False)

    async def _update(
        self,
        path: str,
        fields: Fields,
        bodies: Mapping[str, bytes],
        *,
        in_session: bool,
        collective: bool = False,
    ) -> Answer:
        """Sends one update to the engines.

        in_session: SGLang takes it between begin and end only; they are supplied if the client has
        sent none. collective: it starts on all engines or on none.
        """
        control, session = self._control, self._session
        version = field(fields, "weight_version", str | None, None)  # type: ignore[arg-type]
        selector = field(fields, "selector", str, "all")
        flushes = field(fields, "flush_cache", bool, True)
        engines = control.engines()
        if session is not None:
            engines = [each for each in engines if each.info.engine_id in session.engines]
        if field(fields, "abort_all_requests", bool, False):
            await control.service.abort("")
        async with control.holds.during(UPDATE):
            replies: dict[str, EngineReply] = {}
            if flushes and not any(control.released.values()):
                replies |= await self._idle(engines)
                if control.mode == "in_place" and any(each.status for each in replies.values()):
                    return _not_idle(replies)
            able = [each for each in engines if still(each, replies)]
            supplied = in_session and session is None
            if supplied:
                opening = msgspec.json.encode({"selector": selector})
                replies |= await self._opened(able, opening)
            begun = [each for each in able if still(each, replies)]
            if collective and len(begun) < len(engines):
                await call_all(begun if supplied else [], "POST", "/end_weight_update", b"{}")
                return combined(replies, "", failed=failed_of(replies))
            replies |= await call_all(begun, "POST", path, bodies)
            if supplied:
                ended = await call_all(begun, "POST", "/end_weight_update", b"{}")
                replies |= failed_of(ended)
            took_part = succeeded(engines, replies)
            if session is None:
                if took_part:
                    await let_serve(control.service, took_part, version)
            elif took_part:  # if all failed alike, none of them has missed it
                session.engines = took_part
                session.version = version or session.version
        return self._answer(replies)

    async def _idle(self, engines: Iterable[HttpEngine]) -> Replies:
        """Waits until engines are idle, and returns the replies of those that are not."""
        waits = self._control.mode != "in_place"
        each = list(engines)
        found = await asyncio.gather(*(until_idle(engine, waits=waits) for engine in each))
        replies = {e.info.engine_id: reply for e, reply in zip(each, found, strict=True)}
        return failed_of(replies)

    async def _opened(self, engines: Iterable[HttpEngine], body: bytes) -> Replies:
        """Opens a session on each engine, and returns the replies."""
        each = list(engines)
        replies = await asyncio.gather(*(open_session(engine, body) for engine in each))
        return {e.info.engine_id: reply for e, reply in zip(each, replies, strict=True)}

    def _answer(self, replies: Replies) -> Answer:
        """Returns the answer: a success if an engine succeeded, for only such engines serve."""
        failed = failed_of(replies)
        if failed and len(failed) < len(replies):
            why = f"{named(failed, len(replies))}; they serve nothing until the next update"
            status, answer = combined(replies, "Success.", failed={})
            answer["message"] = f"{answer['message']} {why}"
            return status, answer
        return combined(replies, "Success.", failed=failed)


def _not_idle(replies: Replies) -> Answer:
    """Returns the refusal of an update that SGLang would not survive."""
    status, answer = combined(replies, "", failed=failed_of(replies))
    answer["message"] = (
        "requests are paused in place, and SGLang cannot flush their KV: send flush_cache false, "
        f"or pause with mode retract ({answer['message']})"
    )
    return status, answer
