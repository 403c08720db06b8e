"""Tracks which engines have applied a weight update; the others become stale."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus

from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import ConfigError, EngineRestarted, EngineUnavailable

from .calls import call, on_each
from .replies import EngineReply, Replies
from .state import FleetState, Starts, same_start

logger = logging.getLogger(__name__)
# SGLang's words for failures after which the weights are not the old ones (`WeightUpdater`): of a
# broadcast they are a mixture. From disk it reads the new folder a second time, having forgotten
# the old one.
CHANGED = ("partially updated", "Rolling back to original weights")
LATE = "it did not answer a weight update in time, and may apply it later"
Newest = Mapping[str, EngineInfo | None]  # by engine id; None: it does not answer


async def mark_updated(
    state: FleetState,
    updated: Mapping[str, HttpEngine],
    version: str | None,
    *,
    starts: Starts | None = None,
    loaded: bool = True,
) -> None:
    """Lets the engines serve that have applied a whole update; the others become stale.

    starts: of the engines before the update. loaded: they have loaded weights; else their weights
    were given a name.
    """
    driver = state.driver
    before = starts or {}
    problems = await asyncio.gather(
        *(
            _problem(engine, version, before.get(name), loaded=loaded)
            for name, engine in updated.items()
        )
    )
    behind = {
        engine.info.engine_id: "it missed a weight update"
        for engine in state.fleet.engines
        if engine.info.engine_id not in updated
    }
    for name, problem in zip(updated, problems, strict=True):
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


async def mark_changed(
    state: FleetState,
    engines: Iterable[HttpEngine],
    replies: Replies,
    before: Newest,
    *,
    reports: bool,
) -> set[str]:
    """Takes the engines out whose weights a failed update has changed, or may change later.

    Returns their ids. before: the engines before it, as far as the names of their weights can be
    compared. reports: whether SGLang's replies show if the weights have changed.
    """
    sent = {engine.info.engine_id: engine for engine in engines}
    failed = {name: sent[name] for name, reply in replies.items() if name in sent and reply.refused}
    changed = await asyncio.gather(
        *(
            _changed(engine, replies[name], before.get(name), reports=reports)
            for name, engine in failed.items()
        )
    )
    half = {name for name, has_changed in zip(failed, changed, strict=True) if has_changed}
    broken = dict.fromkeys(sorted(half), "a weight update failed half-way")
    broken |= {name: LATE for name, reply in replies.items() if name in sent and reply.late}
    for name, why in broken.items():
        logger.warning("engine %s is stale: %s", name, why)
        with contextlib.suppress(ConfigError):  # it has left
            state.driver.mark_stale(name, why)
    return set(broken)


async def _changed(
    engine: HttpEngine, reply: EngineReply, before: EngineInfo | None, *, reports: bool
) -> bool:
    """Returns whether an update that an engine refused may have changed its weights."""
    if any(words in str(reply.reply) for words in CHANGED):
        return True
    if before is not None and before.weights is not None:
        try:
            return (await engine.refresh()).weights != before.weights
        except EngineRestarted:  # its next check compares its weights
            return False
        except EngineUnavailable:  # nothing compares them
            pass
    return not reports and not reply.unread


async def all_opened(engines: Sequence[HttpEngine], body: bytes) -> Replies:
    """Opens a session on each engine, and returns the replies."""
    return await on_each(engines, lambda engine: _opened(engine, body))


async def _opened(engine: HttpEngine, body: bytes) -> EngineReply:
    """Opens a session; one that another client has left open is closed first."""
    reply = await call(engine, "POST", "/begin_weight_update", body)
    if reply.status != HTTPStatus.BAD_REQUEST:
        return reply
    ended = await call(engine, "POST", "/end_weight_update", b"{}")
    return await call(engine, "POST", "/begin_weight_update", body) if ended.ok else reply


async def newest_of(engines: Sequence[HttpEngine]) -> Newest:
    """Returns the present descriptions of engines, before an update."""
    newest = await asyncio.gather(*(engine.newest() for engine in engines))
    return {engine.info.engine_id: info for engine, info in zip(engines, newest, strict=True)}


def starts_in(newest: Newest) -> Starts:
    return {name: None if info is None else info.instance for name, info in newest.items()}


async def _problem(
    engine: HttpEngine, version: str | None, start: str | None, *, loaded: bool
) -> str | None:
    """Returns why an engine does not have the new weights; None if it reports them."""
    try:
        info = await engine.refresh(new_weights=loaded)
    except EngineUnavailable as error:
        return str(error)
    if not same_start(start, info.instance):
        return "it was restarted during a weight update"
    reported = info.weight_version
    if version is not None and reported != version:
        return f"it reports weights {reported} after an update to {version}"
    return None


def no_failure_so_far(engine: HttpEngine, replies: Replies) -> bool:
    """Whether every call to an engine has succeeded so far."""
    reply = replies.get(engine.info.engine_id)
    return reply is None or reply.ok


def succeeded(engines: Iterable[HttpEngine], replies: Replies) -> dict[str, HttpEngine]:
    """Returns the engines, by id, that did what the call asked for."""
    return {
        engine.info.engine_id: engine
        for engine in engines
        if engine.info.engine_id in replies and replies[engine.info.engine_id].ok
    }
