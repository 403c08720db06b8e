"""Weight updates: the same calls on every engine, and the engines that missed one are stale."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from seer_sgl.engine.client import HttpEngine
from seer_sgl.errors import InputError, RolloutError, StateError

from .bodies import Fields, Ranks, body_of, fields_of, tensor_bodies
from .calls import call_all, on_each, until_idle
from .groups import DEFAULT_GROUP, require_complete, require_one_copy
from .memory import require_weights
from .replies import CallResult, EngineReply, Replies, failed_of
from .state import SESSION, Before, FleetState, Session, ranks_of, start_of
from .updated import (
    all_opened,
    mark_changed,
    mark_updated,
    newest_of,
    no_failure_so_far,
    starts_in,
    succeeded,
)

UPDATE = "a weight update"  # the hold
DISK, DISTRIBUTED = "/update_weights_from_disk", "/update_weights_from_distributed"
TENSOR, IPC = "/update_weights_from_tensor", "/update_weights_from_ipc"
IN_PLACE = (
    "requests are paused in place, and SGLang cannot flush their KV: send flush_cache false, "
    "or pause with mode retract"
)


class WeightUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One update of the weights, as a call of SGLang.

    `version`: the name of the new weights; None: the same name as before. `flush_cache`: the
    engines drop their KV afterwards. `selector`: SGLang's, for a session opened around the update.
    `group`: the process group of a collective update. `entries`: an entry per rank, of tensors.
    `fields`: all of the call.
    """

    path: str
    fields: Fields = {}
    version: str | None = None
    flush_cache: bool = True
    selector: str = "all"
    group: str = DEFAULT_GROUP
    entries: Sequence[str] = ()

    @classmethod
    def from_disk(cls, folder: str, *, version: str | None = None, **more: Any) -> Self:
        """Loads weights from a folder that every engine sees. `more`: SGLang's other fields."""
        return cls._of(DISK, version, {"model_path": folder, **more})

    @classmethod
    def from_distributed(
        cls,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        *,
        group: str = DEFAULT_GROUP,
        version: str | None = None,
        **more: Any,
    ) -> Self:
        """Receives tensors that the trainer broadcasts to its process group meanwhile."""
        tensors = {"names": names, "dtypes": dtypes, "shapes": shapes, "group_name": group}
        return msgspec.structs.replace(
            cls._of(DISTRIBUTED, version, {**tensors, **more}), group=group
        )

    @classmethod
    def from_tensors(
        cls, entries: Sequence[str], *, version: str | None = None, **more: Any
    ) -> Self:
        """Loads tensors that SGLang's MultiprocessingSerializer has serialized (base64).

        entries: one per rank of the fleet, or one per rank of each engine if all have as many.
        """
        return msgspec.structs.replace(cls._of(TENSOR, version, more), entries=entries)

    @classmethod
    def from_ipc(
        cls, handles: Mapping[str, str], *, version: str | None = None, **more: Any
    ) -> Self:
        """Loads weights through the ZMQ handles of the checkpoint engine, by device."""
        return cls._of(IPC, version, {"zmq_handles": handles, **more})

    @classmethod
    def _of(cls, path: str, version: str | None, values: Mapping[str, Any]) -> Self:
        return cls(
            path=path,
            fields=fields_of(weight_version=version, **values),
            version=version,
            flush_cache=values.get("flush_cache") is not False,
            selector=values.get("selector") or "all",
        )

    @property
    def collective(self) -> bool:
        """Whether it starts on all engines or on none: they would wait for one another."""
        return self.path == DISTRIBUTED

    @property
    def needs_session(self) -> bool:
        """Whether SGLang takes it between begin and end only."""
        return self.path in (DISTRIBUTED, TENSOR)

    def bodies(self, ranks: Ranks) -> dict[str, bytes]:
        """Returns the body for each engine. Raises InputError if the entries do not fit."""
        if self.path == TENSOR:
            return tensor_bodies(self.fields, self.entries, ranks)
        return dict.fromkeys(ranks, body_of(self.fields))


async def begin(state: FleetState, fields: Fields) -> CallResult:
    if state.session is not None:
        raise InputError("a weight-update session is already open; call end_weight_update() first")
    engines = state.engines()
    await state.holds.begin(SESSION)
    try:
        starts = starts_in(await newest_of(engines))
        replies = await all_opened(engines, body_of(fields))
        updated = succeeded(engines, replies)
        if updated:
            state.session = Session(updated, starts)
    finally:
        if state.session is None:
            state.holds.end(SESSION)
    return _served_if_any(replies)


async def end(state: FleetState, fields: Fields) -> CallResult:
    """Closes the session. An engine that missed a part of it is stale.

    So are all of them if the last part failed after others: their weights are a mixture.
    """
    session = state.session
    if session is None:
        raise InputError("no weight-update session is open; call begin_weight_update() first")
    try:
        engines = state.engines()
        replies = await call_all(engines, "POST", "/end_weight_update", body_of(fields))
        ended = succeeded(engines, replies)
        updated = {
            name: engine
            for name, engine in session.engines.items()
            if name in ended and name not in session.broken
            if not (session.begun and session.failed)
        }
        replies = {name: replies[name] for name in session.engines if name in replies}
        await mark_updated(state, updated, session.version, starts=session.starts)
        state.parts.forget()
    finally:
        state.session = None
        state.holds.end(SESSION)
    result = _served_if_any(replies)
    if not result.failed:
        _require_current(state)
    return result


async def update(state: FleetState, new: WeightUpdate, before: Before | None) -> CallResult:
    """Makes one update. Without a session of the caller's the engines serve it at once."""
    session = state.session
    if session is not None:
        session.failed = True  # until engines have applied it
    if new.path != DISK:
        require_one_copy(new.path.removeprefix("/"), state.engines())
    bodies = new.bodies(ranks_of(state.engines()))
    engines = state.taking_part()
    await require_weights(state, engines)
    if new.collective:
        require_complete(state, new.group, engines)
    if before is not None:
        await before()
    async with state.holds.during(UPDATE):
        replies = await _still_loading(state, engines) if new.path == DISK else {}
        if new.flush_cache and not state.lacks_memory:
            answering = [engine for engine in engines if no_failure_so_far(engine, replies)]
            busy = failed_of(
                await on_each(
                    answering, lambda engine: until_idle(engine, state.timing, pause=state.mode)
                )
            )
            if state.mode == "in_place" and any(reply.status for reply in busy.values()):
                return CallResult(busy, busy, IN_PLACE)
            replies |= busy
        ready = [engine for engine in engines if no_failure_so_far(engine, replies)]
        if new.collective and len(ready) < len(engines):
            return CallResult(replies, replies)
        newest = await newest_of(ready) if session is None else {}
        starts = starts_in(newest)
        replies |= await _sent(new, ready, bodies, supplied=session is None)
        state.note_loading(ready if new.path == DISK else (), replies)
        updated = succeeded(engines, replies)
        if updated and session is None:
            if new.path == DISK:
                state.parts.forget()
            whole = state.parts.all_applied(state.holds.number, updated, starts)
            await mark_updated(state, whole, new.version, starts=starts)
            _require_current(state)
        elif updated and session is not None:  # if all failed alike, none has missed it
            session.engines, session.begun, session.failed = updated, True, False
            session.version = new.version or session.version
        else:
            # Weights without memory have a name that says nothing.
            lacking = {e.info.server_id for e in ready if "weights" in state.released_by(e)}
            present = [e.info for e in ready if e.info.server_id not in lacking]
            known = {info.engine_id: newest.get(info.engine_id) for info in present}
            reports = new.path != IPC  # there SGLang passes any exception on
            broken = await mark_changed(state, ready, replies, known, reports=reports)
            if session is not None:
                session.broken |= broken
    return _served_if_any(replies)


async def rename(
    state: FleetState, version: str, fields: Fields, aborts: bool | None, before: Before | None
) -> CallResult:
    if aborts is None:  # a caller that holds generation updates under way
        aborts = not state.holds
    if aborts and before is not None:
        await before()
    body = body_of(fields, new_version=version, abort_all_requests=aborts)
    engines = state.engines()
    async with state.holds.during(UPDATE):
        replies = await call_all(engines, "POST", "/update_weight_version", body)
        updated = succeeded(engines, replies)
        if updated and state.session is not None:
            state.session.version = version
        elif updated:
            stale = state.driver.stale
            current = {name: engine for name, engine in updated.items() if name not in stale}
            await mark_updated(state, current, version, loaded=False)
    return _served_if_any(replies)


async def adopt(state: FleetState, version: str | None) -> None:
    if state.session is not None:
        raise StateError("a weight update is open; call end_update() first")
    async with state.holds.during(UPDATE):
        engines = {engine.info.engine_id: engine for engine in state.engines()}
        await mark_updated(state, engines, version)
        state.parts.forget()
    _require_current(state)


async def _still_loading(
    state: FleetState, engines: Sequence[HttpEngine]
) -> dict[str, EngineReply]:
    """Returns the replies of engines that do not end an update from disk that they have not
    answered.

    A second one would end a paused SGLang, which keeps one result for both
    (`TokenizerManager._wait_for_model_update_from_disk`).
    """
    loading = [engine for engine in engines if start_of(engine) in state.loading]
    # Its scheduler answers this once it has loaded the weights.
    return failed_of(await call_all(loading, "GET", "/server_info"))


def _require_current(state: FleetState) -> None:
    """Raises RolloutError if every engine is stale after an update."""
    stale = state.driver.stale
    names = [engine.info.engine_id for engine in state.engines()]
    if stale.keys() >= set(names):
        raise RolloutError(f"no engine has the new weights; engine {names[0]}: {stale[names[0]]}")


async def _sent(
    new: WeightUpdate,
    engines: Sequence[HttpEngine],
    bodies: Mapping[str, bytes],
    *,
    supplied: bool,
) -> dict[str, EngineReply]:
    """Sends an update to engines, and returns the replies.

    supplied: begin and end are sent around it if it needs them.
    """
    if not (new.needs_session and supplied):
        return dict(await call_all(engines, "POST", new.path, bodies))
    opened = await all_opened(engines, body_of({}, selector=new.selector))
    begun = [engine for engine in engines if no_failure_so_far(engine, opened)]
    updated: Replies = {}
    if len(begun) == len(engines) or not new.collective:
        updated = await call_all(begun, "POST", new.path, bodies)
    ended = await call_all(begun, "POST", "/end_weight_update", b"{}")
    return {**failed_of(opened), **updated, **failed_of(ended)}


def _served_if_any(replies: Replies) -> CallResult:
    """Returns the result: a success if an engine succeeded, for only such engines serve."""
    failed = failed_of(replies)
    return CallResult(replies, failed if len(failed) == len(replies) else {})
