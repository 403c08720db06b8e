"""The HTTP client of one SGLang server (aiohttp).

Generation has no read timeout: a finite one would restart long chunks for ever. The monitor detects
a stuck engine by its progress instead (driver/monitor.py).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec

from seer_sgl.engine_types import EngineInfo, EngineLoad, EngineProblem, EngineWork, ServerState
from seer_sgl.errors import (
    BadReply,
    EngineBroken,
    EngineDied,
    EngineError,
    EngineRestarted,
    EngineStartError,
    EngineUnavailable,
    RequestRejected,
)
from seer_sgl.link import contract
from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import Chunk, ChunkReply, OnTokens

from . import experts, wire
from .closing import SessionCloses
from .describe import MAY_CHANGE, WEIGHTS, changes, describe, only_weights
from .server_calls import (
    GENERATE,
    REFUSALS,
    REPLY_BYTES,
    ServerCalls,
    Unreachable,
    decode_control,
    one_line,
)
from .session import LateBody, read_body, requested
from .stream import Refused, StreamedReply, events

T = TypeVar("T")

HEALTH_TIMEOUT_S = 30.0  # SGLang itself gives a silent scheduler 20 s
LOAD_TIMEOUT_S = 1800.0  # a large model from a slow disk takes minutes
# Far above a valid reply (about 45 bytes per token), so that no reply fills the driver's memory.
REPLY_BYTES_PER_TOKEN = 1 << 10

UNVERIFIED = "being restored"  # the version of weights until their digest is known to be right

# SGLang's headers for the data-parallel rank of a request: of /generate, and of OpenAI's paths.
RANK = ("X-Override-Routed-Dp-Rank", "X-Data-Parallel-Rank")


class HttpEngine:
    """One SGLang server behind a URL, or one of its data-parallel ranks.

    `server` returns the state of its process; `end_server` kills it, so that it is restarted.
    `loading`: held while weights are loaded into the server; its ranks share it.
    """

    # The caller's number of token ids; the number that a server's plugin reports takes precedence.
    vocab_size: int | None = None
    # Returns the caller's reason why a server that was restarted does not fit; None if it does.
    # Raises EngineUnavailable or EngineStartError.
    misfit: Callable[["HttpEngine"], Awaitable[str | None]] | None = None

    def __init__(
        self,
        info: EngineInfo,
        session: aiohttp.ClientSession,
        server: Callable[[], ServerState] = ServerState,
        end_server: Callable[[str], None] = lambda _: None,
        timing: Timing = DEFAULT,
        *,
        loading: asyncio.Lock | None = None,
    ) -> None:
        self._info = info
        self._refresh_at = 0.0  # the event loop's time
        self._checked_version: str | None = None  # the newest that a poll has shown
        self._server = server
        self.end_server = end_server
        self._session = session
        self._timing = timing
        self._loading = loading or asyncio.Lock()
        self._look = asyncio.Lock()  # one look at the server at a time
        self._looked_at = 0.0  # when the last one with a result began, the event loop's time
        self._ended: str | None = None  # its result: why the server has died
        self._closes = SessionCloses(self._close_session, timing.control_timeout_s)

    @property
    def info(self) -> EngineInfo:
        """The server's description from the time it joined or last came back."""
        return self._info

    @property
    def server(self) -> ServerState:
        """The state of the server's process."""
        return self._server()

    async def abort(self, chunk: Chunk) -> None:
        """Ends a chunk early: SGLang answers its call with the tokens generated so far.

        Never raises: the closed socket of a cancelled call also ends it on the server.
        """
        body = aiohttp.JsonPayload({"rid": chunk.rid})
        with contextlib.suppress(EngineUnavailable):
            await self._post("/abort_request", body, self._timing.abort_timeout_s)

    async def refresh(self, *, new_weights: bool = False) -> EngineInfo:
        """Returns the server's current description, and stores it as `info`.

        Raises EngineUnavailable if the server gives none, and EngineRestarted if another server
        answers at the URL. A server can restart between two polls without being missed.
        `new_weights`: the caller has just loaded weights, so that another server is accepted.
        """
        self._refresh_at = asyncio.get_running_loop().time() + self._timing.refresh_every_s
        try:
            current = await self._described()
        except EngineStartError as error:
            raise EngineUnavailable(str(error), engine_id=self._info.engine_id) from error
        if current.instance != self._info.instance and not new_weights:
            why = f"{self._name}: it was restarted"
            raise EngineRestarted(why, engine_id=self._info.engine_id)
        fresh = {name: getattr(current, name) for name in MAY_CHANGE}
        self._info = msgspec.structs.replace(self._info, **fresh)
        return self._info

    async def newest(self) -> EngineInfo | None:
        """Returns the description of the current server; None if it does not answer with one."""
        try:
            return await self._described()
        except (EngineUnavailable, EngineStartError):
            return None

    async def _described(self) -> EngineInfo:
        """Returns the current description of the engine. Raises the errors of `describe`."""
        info, timeout_s = self._info, self._timing.control_timeout_s
        infos = await describe(self._session, info.server_id, self._url, timeout_s)
        if len(infos) != info.dp_size:
            raise EngineStartError(f"{self._name} came back with dp_size {len(infos)}")
        return infos[info.dp_rank]

    async def _keep_up(self) -> None:
        """Refreshes `info`. Other failures than these show in the next call.

        Raises EngineRestarted and EngineBroken.
        """
        try:
            await self.refresh()
        except (EngineRestarted, EngineBroken):
            raise
        except EngineUnavailable:
            return

    async def _check_version(self) -> None:
        """Refreshes `info` if the server reports a new weight version, once per version.

        Raises EngineUnavailable if the server does not answer or was restarted.
        """
        model = await self._get("/model_info", wire.ModelInfo)
        if model.weight_version not in (self._info.weight_version, self._checked_version):
            self._checked_version = model.weight_version
            await self._keep_up()

    async def generate(self, chunk: Chunk, on_tokens: OnTokens | None = None) -> ChunkReply:
        """Runs one chunk and returns its reply. Cancelling the call aborts it on the server.

        on_tokens: receives the new tokens as they arrive. Raises RequestRejected if SGLang refuses
        the request, BadReply for an impossible reply, EngineDied if the server died meanwhile, and
        EngineUnavailable for all other failures (connection, other HTTP status).
        """
        info, stream = self._info, on_tokens is not None
        body = LateBody(lambda: wire.encode_generate(chunk, info, stream))
        shape = info.experts if experts.asks(chunk) else None
        vocab_size = info.vocab_size or self.vocab_size
        limit = REPLY_BYTES + REPLY_BYTES_PER_TOKEN * chunk.max_new_tokens
        limit += experts.most_bytes(chunk, shape)
        try:
            if on_tokens is None:
                reply = await self._post_chunk(body, limit)
                if shape is None:
                    decoded = wire.decode_generate(reply, chunk, vocab_size)
                else:  # megabytes of base64
                    decoded = await asyncio.to_thread(
                        wire.decode_generate, reply, chunk, vocab_size, shape
                    )
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
            await self._keep_up()  # weights were updated, or another server answers
        return decoded

    async def _post_chunk(self, body: aiohttp.Payload, limit: int) -> bytes:
        try:
            return await self._calls.reply("POST", GENERATE, body, limit)
        except Unreachable as error:
            raise await self._broken(error) from error

    async def _stream(
        self, body: LateBody, streamed: StreamedReply, on_tokens: OnTokens, limit: int
    ) -> ChunkReply:
        url, known = self._url + GENERATE, self._info.weight_version
        try:
            async with requested(self._session, "POST", url, body) as response:
                if response.status >= 400:
                    reply = await read_body(response, limit)
                    raise self._calls.failure(response.status, reply, GENERATE)
                async for event in events(response.content, limit):
                    new = streamed.add(event)
                    if new is not None:
                        version = new.weight_spans[-1].version
                        if version not in (known, self._info.weight_version):
                            await self._keep_up()  # weights updated, or another server answers
                            known = version
                        on_tokens(new)
        except (aiohttp.ClientError, OSError) as error:
            raise await self._broken(error) from error
        except Refused as refused:
            kind = RequestRejected if refused.status in REFUSALS else EngineUnavailable
            why = f"{self._name}: HTTP {refused.status}: {one_line(str(refused))}"
            raise kind(why, engine_id=self._info.engine_id, status=refused.status) from refused
        if streamed.reply is None:
            raise wire.Unreadable("the stream ended before its last event")
        return streamed.reply

    @contextlib.asynccontextmanager
    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request to the server unmodified, and yields the answer with any HTTP status.

        body: JSON. Headers name the data-parallel rank, if there are several. Raises
        EngineUnavailable if the connection fails, also inside the block, and EngineDied if the
        server died.
        """
        if self._info.dp_size > 1:
            headers = {**(headers or {}), **dict.fromkeys(RANK, str(self._info.dp_rank))}
        # LateBody: for more than a megabyte of plain bytes aiohttp issues a ResourceWarning.
        data = None if body is None else LateBody(lambda: body)
        try:
            async with requested(
                self._session, method, self._url + path, data, headers
            ) as response:
                yield response
        except (aiohttp.ClientError, OSError) as error:
            raise await self._broken(error) from error

    async def load(self) -> EngineLoad:
        """Returns the engine's part of `/v1/loads`. Raises EngineUnavailable.

        It also updates the weight version in `info`, and every `refresh_every_s` the rest. A server
        that comes back later is compared with it. A silent server costs `control_timeout_s`.
        """
        due = asyncio.get_running_loop().time() >= self._refresh_at
        look = self._keep_up() if due else self._check_version()
        call = self._get("/v1/loads", wire.Loads)
        looked, loads = await asyncio.gather(look, call, return_exceptions=True)
        if isinstance(looked, BaseException):
            raise looked
        if isinstance(loads, BaseException):
            raise loads
        load = loads.of(self._info.dp_rank)
        if load is None:
            why = f"{self._name}: /v1/loads: no load of data-parallel rank {self._info.dp_rank}"
            raise EngineUnavailable(why, engine_id=self._info.engine_id)
        # With pipeline stages SGLang counts the running requests of one micro-batch.
        counted = self._info.pipeline_stages == 1
        return EngineLoad(
            used_tokens=wire.in_range(load.num_used_tokens),
            progress=load.progress,
            running=wire.in_range(load.num_running_reqs),
            queued=wire.in_range((load.num_waiting_reqs or 0) - load.kv_waiting),
            kv_waiting=wire.in_range(load.kv_waiting),
            requests=load.requests if counted else None,
            prefilled_tokens=wire.in_range(load.total_prefill_uncached_tokens),
        )

    async def drafting(self) -> dict[str, Any] | None:
        """Returns the server's drafting counters since its start, and its instance.

        None without drafting. Raises EngineUnavailable.
        """
        plugin = await self._plugin()
        if plugin is None or plugin.draft == contract.NULL:
            return None
        draft = decode_control(plugin.draft, dict[str, Any], f"{self._name}: /server_info")
        return {"instance": plugin.instance, **draft}

    async def work(self) -> EngineWork | None:
        """Returns the server's work counters since its start; None for a stock server.

        Raises EngineUnavailable.
        """
        plugin = await self._plugin()
        return None if plugin is None else plugin.work

    async def waiting(self) -> Sequence[str]:
        """Returns the ids of the queued requests that wait for their KV; none for a stock server.

        Raises EngineUnavailable.
        """
        plugin = await self._plugin()
        return () if plugin is None else plugin.waiting

    def close_session(self, uid: str) -> None:
        """Lets the engine evict the KV of a request like any other; errors change nothing."""
        self._closes.add(uid)

    async def settle(self) -> None:
        """Waits until the closed sessions are closed on the server."""
        await self._closes.settle()

    async def _close_session(self, uid: str) -> None:
        await self._calls.reply("POST", "/close_session", aiohttp.JsonPayload({"session_id": uid}))

    async def flush(self) -> None:
        """Drops all cached KV on the server, of all its ranks, but not in the pool.

        Waits for running requests and pending stores. Raises EngineUnavailable, also on timeout.
        """
        flush_s = self._timing.flush_s
        within_s = flush_s + self._timing.control_timeout_s
        await self._post(f"/flush_cache?timeout={flush_s:g}", None, within_s)

    async def problem(self, weight_version: str | None = None) -> EngineProblem | None:
        """Returns the reason why the engine cannot serve; None if it generates and is unchanged.

        weight_version: the version that a restarted server must serve; None: the one it served
        before.

        `/health`: an idle SGLang generates a token, and answers 200 once a token came out.
        """
        try:
            await self._calls.call("GET", "/health", within_s=HEALTH_TIMEOUT_S)
            now = await self._described()
            if self.misfit is not None and now.instance != self._info.instance:
                why = await self.misfit(self)
                if why is not None:
                    return EngineProblem(why)
        except (EngineError, EngineStartError) as error:
            return EngineProblem(str(error))
        if self._info.pool is None:  # the fleet does not use the engine's pool (engine/fleet.py)
            now = msgspec.structs.replace(now, pool=None)
        changed = changes(self._info, now, weight_version)
        if changed:
            why = f"{self._name} came back with another {', '.join(changed)}"
            return EngineProblem(why, weights=only_weights(changed))
        self._info = now
        return None

    async def restore(self, current: EngineInfo) -> str | None:
        """Loads the weights of `current` from its model path, unless the server has them already.

        Returns why the server does not have them; None if it has. The digest decides: the folder
        may have changed, or a later update may not have come from disk. So the weights get their
        version last.
        """
        if current.weights is None:
            return f"{self._name}: a server without the plugin does not name its weights"
        try:
            async with self._loading:
                problem = await self._restore(current)
        except (EngineError, EngineStartError) as error:
            return str(error)
        if problem is not None:
            return problem
        same = {name: getattr(current, name) for name in WEIGHTS}
        self._info = msgspec.structs.replace(self._info, **same)
        return None

    async def _restore(self, current: EngineInfo) -> str | None:
        now = await self._described()
        if now.weights != current.weights:
            await self._load_weights(current.model_path, UNVERIFIED)
            now = await self._described()
        if now.weights != current.weights:
            return (
                f"{self._name}: {current.model_path} does not have weights {current.weight_version}"
            )
        if now.weight_version != current.weight_version:
            body = {"new_version": current.weight_version, "abort_all_requests": False}
            payload, within_s = aiohttp.JsonPayload(body), self._timing.control_timeout_s
            await self._post("/update_weight_version", payload, within_s)
        return None

    async def _load_weights(self, path: str, version: str) -> None:
        await self.flush()  # SGLang flushes too, but crashes if it has to wait for the flush
        body = aiohttp.JsonPayload({"model_path": path, "weight_version": version})
        await self._post("/update_weights_from_disk", body, LOAD_TIMEOUT_S)

    @property
    def _url(self) -> str:
        """The URL of the newest server; `info` has it once that server was checked."""
        return self._server().url or self._info.url

    @property
    def _name(self) -> str:
        return self._calls.name

    async def _plugin(self) -> contract.PluginReport | None:
        """Returns the current report of our plugin; None for a stock server."""
        info = await self._get("/server_info", wire.ServerInfo)
        state = info.state(self._info.dp_rank)
        return None if state is None else state.seer_sgl

    @property
    def _calls(self) -> ServerCalls:
        engine_id, url = self._info.engine_id, self._url
        name = f"engine {engine_id} ({url})"
        return ServerCalls(self._session, url, name, engine_id, lambda: self.server.why)

    async def _get(self, path: str, kind: type[T]) -> T:
        return await self._calls.get(path, kind, self._timing.control_timeout_s)

    async def _post(self, path: str, body: aiohttp.Payload | None, within_s: float) -> None:
        await self._calls.call("POST", path, body, within_s=within_s)

    async def _broken(self, error: Exception) -> EngineUnavailable:
        """Returns the error of a chunk whose connection broke: EngineDied if the server died.

        All chunks of a server that dies break at once; they share one look at it.
        """
        if isinstance(error.__cause__ or error, aiohttp.ClientConnectorError):
            return self._as_unreachable(error)  # the server has never received it
        broke_at = asyncio.get_running_loop().time()
        async with self._look:
            if self._looked_at < broke_at:
                began = asyncio.get_running_loop().time()
                self._ended = await self._end()
                self._looked_at = began  # not before: a look that is cancelled has no result
        if self._ended is None:
            return self._as_unreachable(error)
        return EngineDied(self._ended, engine_id=self._info.engine_id)

    def _as_unreachable(self, error: Exception) -> EngineUnavailable:
        return error if isinstance(error, Unreachable) else self._calls.unreachable(error)

    async def _end(self) -> str | None:
        """Returns why the server that had our chunks has died; None if it still answers."""
        try:
            now = await self._described()
        except EngineBroken:  # it answers
            return None
        except (EngineUnavailable, EngineStartError) as error:
            why = self.server.why
            return f"{self._name}: {why}" if why else str(error)
        again = now.instance != self._info.instance
        return f"{self._name}: it was restarted" if again else None
