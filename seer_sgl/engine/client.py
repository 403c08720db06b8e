"""The HTTP client of one SGLang server (aiohttp).

There is no read timeout on generation: a finite one would restart long chunks for ever. A stuck
engine is found by watching its progress instead (driver/monitor.py).
"""

import asyncio
import contextlib
import resource
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

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

T = TypeVar("T")

# What may change of an engine while it lives, by its trainer's doing (EngineInfo fields). All the
# rest is what its rollout was planned with.
MAY_CHANGE = ("instance", "model_path", "weight_version", "weights")
LOOK_EVERY_S = 10.0  # at the weights of an engine that serves: a trainer changes them in between

# SGLang's uvicorn closes an idle connection after 5 s; reusing one at that moment loses a request.
KEEPALIVE_S = 4.0
CONNECT_TIMEOUT_S = 10.0
# Of a connection without traffic, by names of Linux: a probe after 20 s, then every 10 s; the peer
# is gone when three of them, or data sent 50 s ago (in milliseconds), were not acknowledged.
PROBES = {
    "TCP_KEEPIDLE": 20,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 50_000,
}
CONTROL_TIMEOUT_S = 10.0  # a reply to anything but /generate
HEALTH_TIMEOUT_S = 30.0  # SGLang itself gives a silent scheduler 20 s
ABORT_TIMEOUT_S = 2.0
FLUSH_TIMEOUT_S = 30.0
# Far above any true reply (some 45 bytes per token), so that none fills the driver's memory.
REPLY_BYTES_PER_TOKEN = 1 << 10
REPLY_BYTES = 4 << 20  # a reply without tokens, or all else in one to /generate
MAX_MESSAGE = 500  # characters of a server's explanation

REFUSALS = (400, 413, 422)  # SGLang uses 400; an error of any other kind is not the request's
# The scheduler bounds the chunks in flight per engine; this only catches a driver gone mad.
MAX_CONNECTIONS = 1 << 16


def open_session(api_key: str | None = None) -> aiohttp.ClientSession:
    """The one session a fleet shares; an async context manager."""
    raise_file_limit()
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=MAX_CONNECTIONS, keepalive_timeout=KEEPALIVE_S, socket_factory=probing_socket
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
    )


def probing_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A TCP socket whose kernel asks a silent peer for life and gives up one that does not answer.

    A chunk is silent for minutes: firewalls forget its connection, and a machine that went away
    never closes it. Probes keep the first and find the second.
    """
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        if hasattr(socket, name):  # Linux has all of them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def raise_file_limit() -> None:
    """Every chunk in flight holds a socket; the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _LateBody(aiohttp.Payload):
    """A request body that is encoded when it is written and not kept afterwards.

    A chunk is in flight for minutes; its input as JSON is larger than the tokens themselves.
    """

    _value: Callable[[], bytes]

    def __init__(self, encode: Callable[[], bytes]) -> None:
        super().__init__(encode, content_type="application/json")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send the body (chunked, because its length is not known before)."""
        await writer.write(self._value())

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The body as text."""
        return self._value().decode(encoding, errors)


class HttpEngine:
    """One SGLang server behind a URL. `obituary` tells how its process ended, if it did."""

    # Token ids of the model, as far as the caller knows; a server's plugin knows better.
    vocab_size: int | None = None

    def __init__(
        self,
        info: EngineInfo,
        session: aiohttp.ClientSession,
        obituary: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._info = info
        self._look_at = 0.0  # the event loop's time
        self._obituary = obituary
        self._session = session

    @property
    def info(self) -> EngineInfo:
        """What the server said of itself when it was joined, or last came back."""
        return self._info

    async def generate(self, chunk: Chunk) -> ChunkReply:
        """Run one chunk to its end. Cancelling the call aborts it on the server.

        Raises RequestRejected if SGLang refuses the request, and EngineUnavailable for all else
        (connection, another HTTP status; BadReply, a reply that cannot be true).
        """
        drafting = self._info.draft_tokens > 0
        body = _LateBody(lambda: wire.encode_generate(chunk, drafting))
        try:
            limit = REPLY_BYTES + REPLY_BYTES_PER_TOKEN * chunk.max_new_tokens
            reply = await self._call("POST", "/generate", body, limit)
        except asyncio.CancelledError:
            await asyncio.shield(self._abort(chunk.rid))
            raise
        try:
            vocab_size = self._info.vocab_size or self.vocab_size
            decoded = wire.decode_generate(reply, chunk, vocab_size)
        except wire.Unreadable as error:
            raise BadReply(f"{self._name}: /generate: {error}") from None
        if decoded.weight_spans and decoded.weight_spans[-1].version != self._info.weight_version:
            await self._look()  # updated, or another server
        return decoded

    async def load(self) -> EngineLoad:
        """`/v1/loads`, summed over data-parallel ranks. Raises EngineUnavailable.

        Now and then also looks which weights the engine serves, to compare them with if it is lost.
        """
        if asyncio.get_running_loop().time() >= self._look_at:
            await self._look()
        body = await self._control("/v1/loads", CONTROL_TIMEOUT_S)
        loads = _decode(body, wire.Loads, f"{self._name}: /v1/loads").loads
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
        draft = _decode(plugin.draft, dict[str, Any], f"{self._name}: /server_info")
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

    async def problem(self) -> str | None:
        """Why the engine cannot serve now; None when it generates and still is what it was.

        `/health`: SGLang generates a token if it is idle, and answers 200 once one came out.
        """
        try:
            await self._control("/health", HEALTH_TIMEOUT_S)
            now = await describe(self._session, self._info.engine_id, self._info.url)
        except (EngineError, EngineStartError) as error:
            return str(error)
        if self._info.pool is None:  # not used, whatever it has (engine/fleet.py)
            now = msgspec.structs.replace(now, pool=None)
        changed = _changes(self._info, now)
        if changed:
            return f"{self._name} came back with another {', '.join(changed)}"
        self._info = now
        return None

    async def _look(self) -> None:
        """Keep up with the weights of a living engine. Raises EngineUnavailable if another server
        answers at its place: one that was never missed may have been started again."""
        self._look_at = asyncio.get_running_loop().time() + LOOK_EVERY_S
        try:
            seen = await describe(self._session, self._info.engine_id, self._info.url)
        except (EngineError, EngineStartError):
            return  # whether it still serves is not the question here
        if seen.instance != self._info.instance:
            raise EngineUnavailable(f"{self._name}: it was started again")
        fresh = {name: getattr(seen, name) for name in MAY_CHANGE}
        self._info = msgspec.structs.replace(self._info, **fresh)

    @property
    def _name(self) -> str:
        return f"engine {self._info.engine_id} ({self._info.url})"

    async def _plugin(self) -> contract.PluginReport | None:
        """What our plugin says of itself now; None in a stock server."""
        body = await self._control("/server_info", CONTROL_TIMEOUT_S)
        said = _decode(body, wire.ServerInfo, f"{self._name}: /server_info")
        return said.internal_states[0].seer_sgl

    async def _abort(self, rid: str) -> None:
        """Tell the server to drop a request; if it does not listen, it sees the closed socket."""
        with contextlib.suppress(EngineUnavailable, RequestRejected, TimeoutError):
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                await self._call("POST", "/abort_request", aiohttp.JsonPayload({"rid": rid}))

    async def _control(self, path: str, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call("GET", path)
        except TimeoutError:
            raise EngineUnavailable(f"{self._name}: no answer on {path}") from None

    async def _call(
        self,
        method: str,
        path: str,
        body: aiohttp.Payload | None = None,
        limit: int = REPLY_BYTES,
    ) -> bytes:
        url = self._info.url + path
        try:
            async with self._session.request(method, url, data=body) as response:
                reply = await _read(response, limit)
        except (aiohttp.ClientError, OSError) as error:
            reason = self._obituary() or str(error) or type(error).__name__
            raise EngineUnavailable(f"{self._name}: {reason}") from None
        if response.status < 400:
            return reply
        complaint = f"{self._name}: HTTP {response.status}{_message(reply)}"
        if response.status in REFUSALS and wire.refusal(reply) is not None:
            raise RequestRejected(complaint)
        raise EngineUnavailable(complaint)


async def describe(session: aiohttp.ClientSession, engine_id: str, url: str) -> EngineInfo:
    """Ask a server who it is.

    Raises EngineUnavailable when it does not answer like SGLang (yet), EngineStartError when its
    answer is one we cannot work with.
    """
    name = f"engine {engine_id} ({url})"
    try:
        timeout = aiohttp.ClientTimeout(total=CONTROL_TIMEOUT_S)
        async with session.get(f"{url}/server_info", timeout=timeout) as response:
            body = await _read(response, REPLY_BYTES)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise EngineUnavailable(f"{name}: {reason}") from None
    if response.status != 200:
        raise EngineUnavailable(f"{name}: HTTP {response.status} on /server_info{_message(body)}")
    return described(body, engine_id, url)


def described(body: bytes, engine_id: str, url: str) -> EngineInfo:
    """What a server says of itself in its `/server_info`. Raises like `describe`."""
    name = f"engine {engine_id} ({url})"
    said = _decode(body, wire.ServerInfo, f"{name}: not an SGLang server we know")
    if said.dp_size != 1:
        raise EngineStartError(f"{name}: dp_size {said.dp_size}; start one server a rank instead")
    state = said.internal_states[0]
    plugin = state.seer_sgl
    reports = [state.seer_sgl for state in said.internal_states]
    problem = contract.problem([report.missing if report else None for report in reports])
    if plugin is not None and problem is not None:  # a stock server without it is fine
        raise EngineStartError(f"{name}: {problem}")
    pool, draft = plugin.pool if plugin else None, contract.DraftReport()
    if plugin is not None and plugin.draft != contract.NULL:
        draft = _decode(plugin.draft, contract.DraftReport, f"{name}: the plugin on drafting")
    return EngineInfo(
        engine_id=engine_id,
        url=url,
        sglang_version=said.version,
        model_path=said.model_path,
        max_total_num_tokens=said.max_total_num_tokens,
        max_running_requests=state.effective_max_running_requests_per_dp,
        max_request_len=said.max_req_input_len,
        page_size=said.page_size,
        radix_cache=not said.disable_radix_cache,
        weight_version=said.weight_version,
        deterministic=said.enable_deterministic_inference,
        has_tokenizer=not said.skip_tokenizer_init,
        plugin=plugin.version if plugin else None,
        instance=plugin.instance if plugin else state.start(),
        weights=plugin.weights if plugin else None,
        vocab_size=plugin.vocab_size if plugin else None,
        pool=pool.namespace if pool else None,
        kv_bytes_per_token=pool.kv_bytes_per_token if pool else 0,
        draft_tokens=draft.draft_tokens,
        pipeline_stages=said.pp_size,
    )


def _changes(before: EngineInfo, now: EngineInfo) -> list[str]:
    """What keeps an engine that comes back from taking the place it had.

    Weights may be others in a server that lives on, which its trainer updated; one that was started
    again must have those of before.
    """
    changed = [
        name
        for name in EngineInfo.__struct_fields__
        if name not in MAY_CHANGE and getattr(now, name) != getattr(before, name)
    ]
    if now.instance is not None and now.instance == before.instance:
        return changed
    if now.model_path != before.model_path:
        changed.append("model_path")
    if now.weight_version != before.weight_version:
        changed.append(f"weight_version ({now.weight_version}, not {before.weight_version})")
    elif None not in (now.weights, before.weights) and now.weights != before.weights:
        changed.append(f"weights under the same weight_version ({now.weight_version})")
    return changed


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body. Raises ClientPayloadError if it has more than `limit` bytes."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise aiohttp.ClientPayloadError(f"a reply of more than {limit} bytes")
    return b"".join(pieces)


def _decode(body: bytes | msgspec.Raw, kind: type[T], name: str) -> T:
    try:
        return wire.decode(body, kind)
    except wire.Unreadable as error:
        raise EngineUnavailable(f"{name}: {error}") from None


def _message(body: bytes) -> str:
    """SGLang's explanation of an error, if there is one, on one line."""
    text = wire.refusal(body) or body[:200].decode(errors="replace")
    return f": {' '.join(text[:MAX_MESSAGE].split())}" if text else ""
