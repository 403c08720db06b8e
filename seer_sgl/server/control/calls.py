"""SGLang's control calls: a body becomes a call of the backend, and its result one answer."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from seer_sgl.backend.bodies import ENTRIES
from seer_sgl.backend.calls import CALL_S, call, server_infos
from seer_sgl.backend.memory import ALL_TAGS, require_weights
from seer_sgl.backend.pausing import PauseMode
from seer_sgl.backend.state import ranks_of
from seer_sgl.backend.weights import TENSOR
from seer_sgl.server.errors import BadRequest, Failed
from seer_sgl.server.prefixes import EVERY, Prefixes
from seer_sgl.server.service import Service

from .answers import Answer, combined, updated
from .bodies import field, group_name, read_fields, read_group, read_update
from .checksums import compared
from .pickles import require_adapter, require_loadable

# SGLang's endpoints that one engine has for itself: the fleet passes them on to each.
TO_EACH: Mapping[str, Sequence[str]] = {
    "/stop_profile": ("GET", "POST"),
    "/set_internal_state": ("POST", "PUT"),
    "/set_trace_level": ("GET", "POST"),
    "/configure_logging": ("GET", "POST"),
    "/freeze_gc": ("GET", "POST"),
    "/load_lora_adapter": ("POST",),
    "/unload_lora_adapter": ("POST",),
}
RECORDS = (
    "/start_expert_distribution_record",
    "/stop_expert_distribution_record",
    "/dump_expert_distribution_record",
)
RECORDER = "expert_distribution_recorder_mode"  # a flag of SGLang
LONGEST_SLEEP_S = 60.0  # before each step; an engine that does nothing for longer seems to hang
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


class ControlCalls:
    """The work of the control calls: request and body in, status and JSON out."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._backend = service.backend

    async def pause(self, _: web.Request, body: bytes) -> Answer:
        """Stops generation until `resume`.

        Mode `abort` ends every response with the tokens it has. In the other modes divided
        responses keep their tokens, and continue afterwards; the engines pause the passthroughs.
        """
        fields = read_fields(body)
        mode: PauseMode = field(fields, "mode", PauseMode, "abort")  # type: ignore[arg-type]
        before = self._abort_all if mode == "abort" else None
        result = await self._backend.pause(mode, fields, before=before)
        return combined(result, "Generation paused successfully.")

    async def resume(self, _: web.Request, body: bytes) -> Answer:
        result = await self._backend.resume(read_fields(body))
        return combined(result, "Generation continued successfully.")

    async def abort(self, _: web.Request, body: bytes) -> Answer:
        """Ends responses by their rid, a prefix of it, or all of them.

        Their clients get the tokens so far. Like SGLang it ignores an empty rid.
        """
        fields = read_fields(body)
        rid = field(fields, "rid", str | list[str], "")  # type: ignore[arg-type]
        named = Prefixes(filter(None, [rid] if isinstance(rid, str) else rid))
        if field(fields, "abort_all", bool, False):
            named = EVERY
        aborted = await self._service.abort(named)
        return 200, {"success": True, "message": f"{aborted} requests aborted", "aborted": aborted}

    async def release(self, _: web.Request, body: bytes) -> Answer:
        """Releases the memory of some tags; without any, all of them, as in SGLang."""
        fields = read_fields(body)
        tags = field(fields, "tags", list[str], []) or ALL_TAGS
        result = await self._backend.release_memory(tags, fields)
        return combined(result, "Memory released.")

    async def take_back(self, _: web.Request, body: bytes) -> Answer:
        fields = read_fields(body)
        tags = field(fields, "tags", list[str], []) or ALL_TAGS
        result = await self._backend.resume_memory(tags, fields)
        return combined(result, "Memory resumed.")

    async def init_group(self, _: web.Request, body: bytes) -> Answer:
        group = read_group(read_fields(body))
        return combined(await self._backend.init_group(group))

    async def destroy_group(self, _: web.Request, body: bytes) -> Answer:
        fields = read_fields(body)
        return combined(await self._backend.destroy_group(group_name(fields), fields))

    async def begin(self, _: web.Request, body: bytes) -> Answer:
        return updated(await self._backend.begin_update(read_fields(body)))

    async def end(self, _: web.Request, body: bytes) -> Answer:
        return updated(await self._backend.end_update(read_fields(body)))

    async def update(self, http: web.Request, body: bytes) -> Answer:
        """Gives the engines new weights, from what the path says."""
        fields = read_fields(body)
        new = read_update(http.path, fields)
        load_format = field(fields, "load_format", str, "") or None
        aborts = field(fields, "abort_all_requests", bool, False)

        async def before() -> None:
            if new.path == TENSOR:
                await asyncio.to_thread(require_loadable, new.entries, load_format)
            if aborts:
                await self._abort_all()

        return updated(await self._backend.update_weights(new, before=before))

    async def rename(self, _: web.Request, body: bytes) -> Answer:
        fields = read_fields(body)
        version = field(fields, "new_version", str, "")
        if not version:
            raise BadRequest("new_version: missing")
        # A trainer that holds generation updates under way: its responses continue afterwards.
        aborts = field(fields, "abort_all_requests", bool | None, None)  # type: ignore[arg-type]
        renaming = self._backend.rename_weights(
            version, fields, aborts=aborts, before=self._abort_all
        )
        return updated(await renaming)

    async def flush(self, http: web.Request, _: bytes) -> Answer:
        """Flushes the caches. While schedulers stand still SGLang's `timeout` is left out: with one
        it waits for requests that wait themselves, and every later flush waits behind it."""
        seconds = _seconds(http.query.get("timeout"))
        if not 0 <= seconds <= CALL_S:
            raise BadRequest(f"timeout: not a number from 0 to {CALL_S:g}")
        state = self._backend.state
        still = state.mode in ("retract", "in_place") or state.to_continue
        path = http.path if still else http.path_qs
        return combined(await self._backend.flush_cache(path), FLUSHED)

    async def to_each(self, http: web.Request, body: bytes) -> Answer:
        result = await self._backend.call_each(http.method, http.path_qs, body or None)
        return combined(result)

    async def start_profile(self, http: web.Request, body: bytes) -> Answer:
        """Starts SGLang's profiler on every engine. By stages it needs the number of steps: without
        one SGLang counts on from None at its next step (`_profile_batch_predicate`), and ends."""
        fields = read_fields(body)
        by_stage, steps = field(fields, "profile_by_stage", Any, None), fields.get("num_steps")
        if by_stage and (steps is None or bytes(steps).strip() in (b"null", b"0")):
            raise BadRequest("num_steps: SGLang would fail without it if profile_by_stage is true")
        return await self.to_each(http, body)

    async def record_experts(self, http: web.Request, body: bytes) -> Answer:
        """Starts, stops or writes SGLang's record of chosen experts; an engine without a recorder
        would end (`ExpertDistributionRecorder._on_not_implemented`)."""
        engines, within_s = self._backend.fleet.engines, self._service.timing.control_timeout_s
        # One that does not answer does nothing now.
        for name, info in (await server_infos(engines, within_s)).items():
            if RECORDER in info and info[RECORDER] is None:
                raise BadRequest(f"engine {name} runs without {RECORDER}, and would fail")
        return await self.to_each(http, body)

    async def slow_down(self, http: web.Request, body: bytes) -> Answer:
        """Lets every engine sleep before each step: one that sleeps for ever hears no other call,
        and Python refuses times beyond its clock."""
        sleep = field(read_fields(body), "forward_sleep_time", Any, None)
        if _seconds(sleep) > LONGEST_SLEEP_S:
            raise BadRequest(f"forward_sleep_time: above {LONGEST_SLEEP_S:g} seconds")
        return await self.to_each(http, body)

    async def load_adapter(self, http: web.Request, body: bytes) -> Answer:
        """Loads a LoRA adapter from tensors on every engine."""
        fields = read_fields(body)
        entries: list[str] = field(fields, ENTRIES, list[str], [])
        load_format = field(fields, "load_format", str, "") or None
        infos = [engine.info for engine in self._backend.fleet.engines]
        ranks = max((info.ranks // info.pipeline_stages for info in infos), default=0)
        await asyncio.to_thread(require_adapter, entries, load_format, ranks)
        return await self.to_each(http, body)

    async def check_weights(self, http: web.Request, body: bytes) -> Answer:
        """Sends `weights_checker` to every engine, and compares their checksums."""
        action = field(read_fields(body), "action", str, "checksum")
        await require_weights(self._backend.state, self._backend.fleet.engines)
        result = await self._backend.call_each(http.method, http.path_qs, body or None)
        if action != "checksum":
            return combined(result)
        ranks = ranks_of(self._backend.fleet.engines)
        return compared(result.replies, ranks, self._backend.driver.stale)

    async def weights_by_name(self, http: web.Request, body: bytes) -> Answer:
        """Returns one parameter, of one engine."""
        engine = self._service.any_engine()
        await require_weights(self._backend.state, [engine])
        reply = await call(engine, http.method, http.path_qs, body or None)
        if reply.status is None:
            raise Failed(reply.message)
        return reply.status, reply.reply

    async def _abort_all(self) -> None:
        await self._service.abort(EVERY)


def _seconds(value: Any) -> float:
    """Returns what SGLang reads as a number; 0 for what it refuses, infinity for no number."""
    try:
        seconds = float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return 0.0
    return math.inf if math.isnan(seconds) else seconds
