"""The HTTP client of one SGLang server (aiohttp).

There is no read timeout on generation: a finite one would restart long chunks for ever. A stuck
engine is found by watching its progress instead (driver/monitor.py).
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from seer_sgl.errors import (
    BadReply,
    EngineError,
    EngineStartError,
    EngineUnavailable,
    RequestRejected,
)
from seer_sgl.link import contract
from seer_sgl.types import Chunk, ChunkReply, EngineInfo, EngineLoad, EngineWork

from . import wire
from .describe import (
    CONTROL_TIMEOUT_S,
    MAY_CHANGE,
    REPLY_BYTES,
    changes,
    decode_control,
    describe,
    explanation,
    one_line,
)
from .session import LateBody, read_body
from .stream import Refused, StreamedReply, events

OnTokens = Callable[[ChunkReply], None]  # receives the new tokens of a chunk
LOOK_EVERY_S = 10.0  # at the weights of an engine that serves: a trainer changes them in between

HEALTH_TIMEOUT_S = 30.0  # SGLang itself gives a silent scheduler 20 s
ABORT_TIMEOUT_S = 2.0
FLUSH_TIMEOUT_S = 30.0
# Far above any true reply (some 45 bytes per token), so that none fills the driver's memory.
REPLY_BYTES_PER_TOKEN = 1 << 10

REFUSALS = (400, 413, 422)  # SGLang uses 400; an error of any other kind is not the request's


class StartedAgain(EngineUnavailable):
    """Another server answers at the engine's place."""


class HttpEngine:
    """One SGLang server behind a URL. `exit_reason` returns how its process ended, if it did."""

    # Token ids of the model, as far as the caller knows; a server's plugin knows better.
    vocab_size: int | None = None

    def __init__(
        self,
        info: EngineInfo,
        session: aiohttp.ClientSession,
        exit_reason: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._info = info
        self._look_at = 0.0  # the event loop's time
        self._exit_reason = exit_reason
        self._session = session

    @property
    def info(self) -> EngineInfo:
        """The description of the server from when it was joined, or last came back."""
        return self._info

    async def abort(self, chunk: Chunk) -> None:
        """End a chunk early: SGLang answers its call with what there is. Never raises: a
        server that does not answer sees the closed socket of a call that was cancelled."""
        with contextlib.suppress(EngineUnavailable, RequestRejected, TimeoutError):
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                await self._call("POST", "/abort_request", aiohttp.JsonPayload({"rid": chunk.rid}))

    async def refresh(self) -> EngineInfo:
        """Returns the server's description of now, which `info` then is.

        Raises EngineUnavailable if there is none, or if another server answers at its place: one
        that was never missed may have been started again.
        """
        self._look_at = asyncio.get_running_loop().time() + LOOK_EVERY_S
        try:
            seen = await describe(self._session, self._info.engine_id, self._info.url)
        except EngineStartError as error:
            raise EngineUnavailable(str(error), engine_id=self._info.engine_id) from error
        if seen.instance != self._info.instance:
            why = f"{self._name}: it was started again"
            raise StartedAgain(why, engine_id=self._info.engine_id)
        fresh = {name: getattr(seen, name) for name in MAY_CHANGE}
        self._info = msgspec.structs.replace(self._info, **fresh)
        return self._info

    async def _keep_up(self) -> None:
        """Look again at a living engine. Raises StartedAgain; whether it still serves is not the
        question here."""
        try:
            await self.refresh()
        except StartedAgain:
            raise
        except EngineUnavailable:
            return

    async def generate(self, chunk: Chunk, on_tokens: OnTokens | None = None) -> ChunkReply:
        """Run one chunk to its end. Cancelling the call aborts it on the server.

        on_tokens: receives the new tokens as they come. Raises RequestRejected if SGLang refuses
        the request, and EngineUnavailable for all else (connection, another HTTP status; BadReply,
        a reply that cannot be true).
        """
        drafting, stream = self._info.draft_tokens > 0, on_tokens is not None
        body = LateBody(lambda: wire.encode_generate(chunk, drafting, stream))
        vocab_size = self._info.vocab_size or self.vocab_size
        limit = REPLY_BYTES + REPLY_BYTES_PER_TOKEN * chunk.max_new_tokens
        try:
            if on_tokens is None:
                reply = await self._call("POST", "/generate", body, limit)
                decoded = wire.decode_generate(reply, chunk, vocab_size)
            else:
                streamed = StreamedReply(chunk, vocab_size)
                decoded = await self._stream(body, streamed, on_tokens, limit)
        except asyncio.CancelledError:
            await asyncio.shield(self.abort(chunk))
            raise
        except wire.Unreadable as error:
            why = f"{self._name}: /generate: {error}"
            raise BadReply(why, engine_id=self._info.engine_id) from error
        if decoded.weight_spans and decoded.weight_spans[-1].version != self._info.weight_version:
            await self._keep_up()  # updated, or another server
        return decoded

    async def _stream(
        self, body: LateBody, streamed: StreamedReply, on_tokens: OnTokens, limit: int
    ) -> ChunkReply:
        url, known = f"{self._info.url}/generate", self._info.weight_version
        try:
            async with self._session.post(url, data=body) as response:
                if response.status >= 400:
                    raise self._failure(response.status, await read_body(response, limit))
                async for event in events(response.content, limit):
                    new = streamed.add(event)
                    if new is not None:
                        version = new.weight_spans[-1].version
                        if version not in (known, self._info.weight_version):
                            await self._keep_up()  # updated, or another server
                            known = version
                        on_tokens(new)
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        except Refused as refused:
            kind = RequestRejected if refused.status in REFUSALS else EngineUnavailable
            why = f"{self._name}: HTTP {refused.status}: {one_line(str(refused))}"
            raise kind(why, engine_id=self._info.engine_id, status=refused.status) from refused
        if streamed.reply is None:
            raise wire.Unreadable("the stream ended before its last event")
        return streamed.reply

    async def load(self) -> EngineLoad:
        """`/v1/loads`, summed over data-parallel ranks. Raises EngineUnavailable.

        Now and then also looks which weights the engine serves, to compare them with if it is lost.
        """
        if asyncio.get_running_loop().time() >= self._look_at:
            await self._keep_up()
        body = await self._control("/v1/loads", CONTROL_TIMEOUT_S)
        loads = decode_control(body, wire.Loads, f"{self._name}: /v1/loads").loads
        requests = [load.requests for load in loads if load.requests is not None]
        # With pipeline stages SGLang counts the running requests of one micro-batch.
        counted = len(requests) == len(loads) and self._info.pipeline_stages == 1
        return EngineLoad(
            used_tokens=sum(max(0, load.num_used_tokens) for load in loads),
            progress=tuple(load.progress for load in loads),
            requests=sum(requests) if counted else None,
            prefilled_tokens=sum(load.total_prefill_uncached_tokens for load in loads),
        )

    async def drafting(self) -> dict[str, Any] | None:
        """What the server has counted of drafting since it started, and which start of it that is.

        None without drafting. Raises EngineUnavailable or RequestRejected.
        """
        plugin = await self._plugin()
        if plugin is None or plugin.draft == contract.NULL:
            return None
        draft = decode_control(plugin.draft, dict[str, Any], f"{self._name}: /server_info")
        return {"instance": plugin.instance, **draft}

    async def work(self) -> EngineWork | None:
        """What the server has computed since it started; None of a stock server, which keeps it to
        itself. Raises EngineUnavailable or RequestRejected."""
        plugin = await self._plugin()
        return None if plugin is None else plugin.work

    async def flush(self) -> None:
        """Forget all cached KV; the pool's stays. Waits for what runs or is being stored.

        Raises EngineUnavailable, also if that takes too long.
        """
        await self._call("POST", f"/flush_cache?timeout={FLUSH_TIMEOUT_S:g}")

    async def reload_weights(self, version: str) -> None:
        """Load the model's weights again from where they came from, as `version`.

        Raises EngineUnavailable or RequestRejected.
        """
        await self.flush()  # SGLang does too, but dies where it has to wait for it
        body = {"model_path": self._info.model_path, "weight_version": version}
        await self._call("POST", "/update_weights_from_disk", aiohttp.JsonPayload(body))

    async def problem(self, weight_version: str | None = None) -> str | None:
        """Why the engine cannot serve now; None when it generates and still is what it was.

        weight_version: that a server must serve which was started again; None: what it served.

        `/health`: SGLang generates a token if it is idle, and answers 200 once one came out.
        """
        try:
            await self._control("/health", HEALTH_TIMEOUT_S)
            now = await describe(self._session, self._info.engine_id, self._info.url)
        except (EngineError, EngineStartError) as error:
            return str(error)
        if self._info.pool is None:  # not used, whatever it has (engine/fleet.py)
            now = msgspec.structs.replace(now, pool=None)
        changed = changes(self._info, now, weight_version)
        if changed:
            return f"{self._name} came back with another {', '.join(changed)}"
        self._info = now
        return None

    @property
    def _name(self) -> str:
        return f"engine {self._info.engine_id} ({self._info.url})"

    async def _plugin(self) -> contract.PluginReport | None:
        """Returns the report of our plugin of now; None in a stock server."""
        body = await self._control("/server_info", CONTROL_TIMEOUT_S)
        info = decode_control(body, wire.ServerInfo, f"{self._name}: /server_info")
        return info.internal_states[0].seer_sgl

    async def _control(self, path: str, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call("GET", path)
        except TimeoutError as error:
            why = f"{self._name}: no answer on {path}"
            raise EngineUnavailable(why, engine_id=self._info.engine_id) from error

    async def _call(
        self,
        method: str,
        path: str,
        body: aiohttp.Payload | None = None,
        limit: int = REPLY_BYTES,
    ) -> bytes:
        try:
            async with self._session.request(method, self._info.url + path, data=body) as response:
                reply = await read_body(response, limit)
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        if response.status >= 400:
            raise self._failure(response.status, reply)
        return reply

    def _unreachable(self, error: Exception) -> EngineUnavailable:
        reason = self._exit_reason() or str(error) or type(error).__name__
        return EngineUnavailable(f"{self._name}: {reason}", engine_id=self._info.engine_id)

    def _failure(self, status: int, reply: bytes) -> EngineError:
        """The error that an HTTP status stands for."""
        refused = status in REFUSALS and wire.refusal(reply) is not None
        kind = RequestRejected if refused else EngineUnavailable
        why = f"{self._name}: HTTP {status}{explanation(reply)}"
        return kind(why, engine_id=self._info.engine_id, status=status)
