"""Weight updates: the same calls on every engine, and the engines that missed one are stale."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus

import msgspec
from aiohttp import web

from seer_sgl.engine.client import HttpEngine
from seer_sgl.errors import ConfigError, EngineUnavailable
from seer_sgl.server.errors import BadRequest

from .bodies import Fields, field, group_bodies, read_fields, tensor_bodies
from .control import SESSION, Answer, Control
from .fleet_calls import call, call_all, until_idle
from .replies import EngineReply, Replies, combined, failures, named

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

    async def init_group(self, _: web.Request, body: bytes) -> Answer:
        """Makes every engine's ranks join the trainer's process group."""
        control = self._control
        bodies = group_bodies(read_fields(body), control.ranks())
        async with control.holds.during("init_weights_update_group"):
            replies = await call_all(
                control.engines(), "POST", "/init_weights_update_group", bodies
            )
        return combined(replies, "Success.", failed=failures(replies, all_needed=True))

    async def destroy_group(self, _: web.Request, body: bytes) -> Answer:
        """Makes every engine leave the process group."""
        control = self._control
        read_fields(body)
        async with control.holds.during("destroy_weights_update_group"):
            replies = await call_all(
                control.engines(), "POST", "/destroy_weights_update_group", body or b"{}"
            )
        return combined(replies, "Success.", failed=failures(replies))

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
            took_part = _succeeded(engines, replies)
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
            ended = _succeeded(engines, replies)
            took_part = {name: each for name, each in session.engines.items() if name in ended}
            replies = {name: replies[name] for name in session.engines if name in replies}
            await self._finish(took_part, session.version)
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
            took_part = _succeeded(engines, replies)
            if self._session is not None:
                self._session.version = version
            elif took_part:
                stale = control.service.driver.stale
                current = {name: each for name, each in took_part.items() if name not in stale}
                await self._finish(current, version, loaded=False)
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
                if any(reply.status is not None for reply in _failed(replies).values()):
                    return _not_idle(replies)
            able = [each for each in engines if _still(each, replies)]
            supplied = in_session and session is None
            if supplied:
                opening = msgspec.json.encode({"selector": selector})
                replies |= await self._opened(able, opening)
            begun = [each for each in able if _still(each, replies)]
            if collective and len(begun) < len(engines):
                await call_all(begun if supplied else [], "POST", "/end_weight_update", b"{}")
                return combined(replies, "", failed=_failed(replies))
            replies |= await call_all(begun, "POST", path, bodies)
            if supplied:
                ended = await call_all(begun, "POST", "/end_weight_update", b"{}")
                replies |= _failed(ended)
            took_part = _succeeded(engines, replies)
            if session is None:
                if took_part:
                    await self._finish(took_part, version)
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
        return _failed(replies)

    async def _opened(self, engines: Iterable[HttpEngine], body: bytes) -> Replies:
        """Opens a session on each engine, and returns the replies."""
        each = list(engines)
        replies = await asyncio.gather(*(_open(engine, body) for engine in each))
        return {e.info.engine_id: reply for e, reply in zip(each, replies, strict=True)}

    async def _finish(
        self, took_part: Mapping[str, HttpEngine], version: str | None, *, loaded: bool = True
    ) -> None:
        """Lets the engines serve that took part in a whole update; the others are stale.

        loaded: they have loaded weights; else their weights were given a name.
        """
        driver = self._control.service.driver
        problems = await asyncio.gather(
            *(_problem(engine, version, loaded=loaded) for engine in took_part.values())
        )
        behind = {
            engine.info.engine_id: "it missed a weight update"
            for engine in self._control.service.fleet.engines
            if engine.info.engine_id not in took_part
        }
        for name, problem in zip(took_part, problems, strict=True):
            if problem is not None:
                behind[name] = problem
            else:
                driver.clear_stale(name)
        for name, why in behind.items():
            if name not in driver.stale:
                logger.warning("engine %s is stale: %s", name, why)
            with contextlib.suppress(ConfigError):  # it has left
                driver.mark_stale(name, why)
        driver.adopt_weights(version)
        logger.info("the engines serve new weights%s", f" {version}" if version else "")

    def _answer(self, replies: Replies) -> Answer:
        """Returns the answer: a success if an engine succeeded, for only such engines serve."""
        failed = _failed(replies)
        if failed and len(failed) < len(replies):
            why = f"{named(failed, len(replies))}; they serve nothing until the next update"
            status, answer = combined(replies, "Success.", failed={})
            answer["message"] = f"{answer['message']} {why}"
            return status, answer
        return combined(replies, "Success.", failed=failed)


async def _open(engine: HttpEngine, body: bytes) -> EngineReply:
    """Opens a session; one that another client has left open is closed first."""
    reply = await call(engine, "POST", "/begin_weight_update", body)
    if reply.status != HTTPStatus.BAD_REQUEST:
        return reply
    ended = await call(engine, "POST", "/end_weight_update", b"{}")
    return await call(engine, "POST", "/begin_weight_update", body) if ended.ok else reply


async def _problem(engine: HttpEngine, version: str | None, *, loaded: bool) -> str | None:
    """Returns why an engine does not have the new weights; None if it reports them."""
    try:
        reported = (await engine.refresh(new_weights=loaded)).weight_version
    except EngineUnavailable as error:
        return str(error)
    if version is not None and reported != version:
        return f"it reports weights {reported} after an update to {version}"
    return None


def _failed(replies: Replies) -> dict[str, EngineReply]:
    return {name: reply for name, reply in replies.items() if not reply.ok}


def _still(engine: HttpEngine, replies: Replies) -> bool:
    """Returns whether an engine has failed nothing so far."""
    reply = replies.get(engine.info.engine_id)
    return reply is None or reply.ok


def _succeeded(engines: Iterable[HttpEngine], replies: Replies) -> dict[str, HttpEngine]:
    """Returns the engines, by id, that did what the call asked for."""
    return {
        engine.info.engine_id: engine
        for engine in engines
        if engine.info.engine_id in replies and replies[engine.info.engine_id].ok
    }


def _not_idle(replies: Replies) -> Answer:
    """Returns the refusal of an update that SGLang would not survive."""
    status, answer = combined(replies, "", failed=_failed(replies))
    answer["message"] = (
        "requests are paused in place, and SGLang cannot flush their KV: send flush_cache false, "
        f"or pause with mode retract ({answer['message']})"
    )
    return status, answer
