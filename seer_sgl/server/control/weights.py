"""Weight updates: the same calls on every engine, and the engines that missed one are stale."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from aiohttp import web

from seer_sgl.engine.client import HttpEngine
from seer_sgl.server.errors import BadRequest
from seer_sgl.server.json import dumps

from .bodies import Fields, field, read_fields, tensor_bodies, with_fields
from .control import SESSION, Answer, Control, Session
from .fleet_calls import call_all, each_idle
from .groups import group_name, require_complete
from .pickles import FIELD, require_loadable
from .replies import EngineReply, Replies, combined, failed_of, named
from .taking_part import all_opened, let_serve, still, succeeded

UPDATE = "a weight update"


class _Update(msgspec.Struct, frozen=True):
    """One update, with the body for each engine.

    session: SGLang takes it between begin and end only. collective: it starts on all engines or on
    none: they would wait for one another.
    """

    path: str
    fields: Fields
    bodies: Mapping[str, bytes]
    session: bool = False
    collective: bool = False

    @property
    def version(self) -> str | None:
        """The version of the new weights, if the client names one."""
        return field(self.fields, "weight_version", str | None, None)  # type: ignore[arg-type]

    @property
    def flushes(self) -> bool:
        """Whether the engines drop their KV afterwards."""
        return field(self.fields, "flush_cache", bool, True)

    @property
    def aborts(self) -> bool:
        """Whether the requests in progress end before."""
        return field(self.fields, "abort_all_requests", bool, False)


class WeightUpdates:
    """The handlers of the weight updates. Nothing is dispatched while weights change."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def begin(self, _: web.Request, body: bytes) -> Answer:
        """Opens a session on every engine; nothing is dispatched until `end`."""
        control = self._control
        read_fields(body)
        if control.session is not None:
            raise BadRequest(
                "a weight-update session is already open; call end_weight_update() first"
            )
        engines = control.engines()
        await control.holds.begin(SESSION)
        try:
            replies = await all_opened(engines, body or b"{}")
            took_part = succeeded(engines, replies)
            if took_part:
                control.session = Session(took_part)
        finally:
            if control.session is None:
                control.holds.end(SESSION)
        return self._answer(replies)

    async def end(self, _: web.Request, body: bytes) -> Answer:
        """Closes the session. An engine that missed a part of it is stale."""
        control, session = self._control, self._control.session
        read_fields(body)
        if session is None:
            raise BadRequest("no weight-update session is open; call begin_weight_update() first")
        try:
            engines = control.engines()
            replies = await call_all(engines, "POST", "/end_weight_update", body or b"{}")
            ended = succeeded(engines, replies)
            took_part = {name: each for name, each in session.engines.items() if name in ended}
            replies = {name: replies[name] for name in session.engines if name in replies}
            await let_serve(control.service, took_part, session.version)
        finally:
            control.session = None
            control.holds.end(SESSION)
        return self._answer(replies)

    async def from_disk(self, http: web.Request, body: bytes) -> Answer:
        """Loads weights from a folder that every engine sees."""
        return await self._update(_Update(http.path, read_fields(body), self._to_all(body)))

    async def from_ipc(self, http: web.Request, body: bytes) -> Answer:
        """Loads weights through the handles of the checkpoint engine."""
        return await self._update(_Update(http.path, read_fields(body), self._to_all(body)))

    async def from_distributed(self, http: web.Request, body: bytes) -> Answer:
        """Receives weights that the trainer broadcasts to its process group."""
        fields, bodies = read_fields(body), self._to_all(body)
        return await self._update(_Update(http.path, fields, bodies, session=True, collective=True))

    async def from_tensor(self, http: web.Request, body: bytes) -> Answer:
        """Loads serialized tensors: one entry per rank of the fleet."""
        fields = read_fields(body)
        bodies = tensor_bodies(fields, self._control.ranks())
        entries = field(fields, FIELD, list[str], [])
        load_format = field(fields, "load_format", str, "") or None
        await asyncio.to_thread(require_loadable, entries, load_format)
        return await self._update(_Update(http.path, fields, bodies, session=True))

    async def rename(self, _: web.Request, body: bytes) -> Answer:
        """Gives the weights another version, on every engine."""
        control = self._control
        fields = read_fields(body)
        version = field(fields, "new_version", str, "")
        if not version:
            raise BadRequest("new_version: missing")
        # A trainer that holds generation updates under way: its responses are to go on afterwards.
        aborts = field(fields, "abort_all_requests", bool, not control.holds)
        if aborts:
            await control.service.abort("")
        body = with_fields(fields, abort_all_requests=aborts)
        engines = control.engines()
        async with control.holds.during(UPDATE):
            replies = await call_all(engines, "POST", "/update_weight_version", body)
            took_part = succeeded(engines, replies)
            if control.session is not None:
                control.session.version = version
            elif took_part:
                stale = control.service.driver.stale
                current = {name: each for name, each in took_part.items() if name not in stale}
                await let_serve(control.service, current, version, loaded=False)
        return self._answer(replies)

    def _to_all(self, body: bytes) -> dict[str, bytes]:
        return dict.fromkeys(self._control.ranks(), body)

    async def _update(self, update: "_Update") -> Answer:
        """Makes one update. Without a session of the client's the engines serve it at once."""
        control, session = self._control, self._control.session
        version, flushes, aborts = update.version, update.flushes, update.aborts
        engines = control.taking_part()
        if update.collective:
            require_complete(control, group_name(update.fields), engines)
        if aborts:
            await control.service.abort("")
        async with control.holds.during(UPDATE):
            replies: dict[str, EngineReply] = {}
            if flushes and not control.lacks_memory:
                replies |= failed_of(await each_idle(engines, pause=control.mode))
            if control.mode == "in_place" and any(each.status for each in replies.values()):
                return _not_idle(replies)
            able = [each for each in engines if still(each, replies)]
            if update.collective and len(able) < len(engines):
                return combined(replies, "", failed=replies)
            replies |= await _sent(update, able, supplied=session is None)
            took_part = succeeded(engines, replies)
            if took_part and session is None:
                await let_serve(control.service, took_part, version)
            elif took_part and session is not None:  # if all failed alike, none has missed it
                session.engines = took_part
                session.version = version or session.version
        return self._answer(replies)

    def _answer(self, replies: Replies) -> Answer:
        """Returns the answer: a success if an engine succeeded, for only such engines serve."""
        failed = failed_of(replies)
        if failed and len(failed) < len(replies):
            why = f"{named(failed, len(replies))}; they serve nothing until the next update"
            status, answer = combined(replies, "Success.", failed={})
            answer["message"] = f"{answer['message']} {why}"
            return status, answer
        return combined(replies, "Success.", failed=failed)


async def _sent(
    update: _Update, engines: Sequence[HttpEngine], *, supplied: bool
) -> dict[str, EngineReply]:
    """Sends an update to engines, and returns the replies.

    supplied: begin and end are sent around it if it needs them.
    """
    if not (update.session and supplied):
        return dict(await call_all(engines, "POST", update.path, update.bodies))
    selector = field(update.fields, "selector", str, "all")
    opened = await all_opened(engines, dumps({"selector": selector}))
    begun = [each for each in engines if still(each, opened)]
    updated: Replies = {}
    if len(begun) == len(engines) or not update.collective:
        updated = await call_all(begun, "POST", update.path, update.bodies)
    ended = await call_all(begun, "POST", "/end_weight_update", b"{}")
    return {**failed_of(opened), **updated, **failed_of(ended)}


def _not_idle(replies: Replies) -> Answer:
    """Returns the refusal of an update that SGLang would not survive."""
    status, answer = combined(replies, "", failed=failed_of(replies))
    answer["message"] = (
        "requests are paused in place, and SGLang cannot flush their KV: send flush_cache false, "
        f"or pause with mode retract ({answer['message']})"
    )
    return status, answer
