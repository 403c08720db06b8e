"""A fake SGLang server on a real socket, for unit tests, fault injection and the driver benchmark.

It is never evidence for a claim about SGLang. Its tokens depend on (seed, position) only, as in
SGLang with deterministic inference. So a divided run can be compared with an undivided one.

As a program (`python -m tests.fake_sglang OPTIONS`, a JSON object) it serves until it is killed.
"""

import asyncio
import contextlib
import functools
import gc
import itertools
import json
import re
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
from aiohttp import web

from seer_sgl.link.contract import NO_READ, ORIGIN
from tests.fake_control import FakeControl
from tests.garbage import CONTROL, GARBAGE

EOS = 0
VOCAB = 1000
STREAMED = 3  # tokens per event
DYING_TURNS = 10  # of the event loop


def token_at(seed: int, position: int) -> int:
    """Returns the token of a request with `seed` at the absolute `position`; never EOS."""
    mixed = (seed * 0x9E3779B97F4A7C15 + position * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    return 1 + (mixed >> 33) % (VOCAB - 1)


def length_of(seed: int, longest: int) -> int:
    """Returns how many tokens a request with `seed` generates before EOS."""
    return 1 + (seed >> 7) % longest


def response_of(seed: int, prompt_len: int, longest: int, part: slice = slice(None)) -> list[int]:
    """Returns the response of an undivided, unlimited call, or a part of it."""
    last = length_of(seed, longest) - 1
    places = range(last + 1)[part]
    return [EOS if i == last else token_at(seed, prompt_len + i) for i in places]


def reads_none(call: dict[str, Any]) -> bool:
    """Returns whether a call forbids the engine to read its KV from the pool."""
    origin = call["sampling_params"].get("custom_params", {}).get(ORIGIN, {})
    return bool(origin.get(NO_READ))


@dataclass(eq=False)
class FakeSGLang(FakeControl):
    """The server's behaviour and the calls it has received.

    Each /generate call consumes one of `faults`: ok, stall, lost (the reply in transit), reset,
    abort (half-way), abort_late (in the last step, whose stop SGLang does not check),
    abort_queued (before a token), read (it waits in the queue for KV that is not read, unless it
    reads none), mid_body, slow, garbage (the next shape of tests/garbage.py),
    `garbage NAME` (that shape), die (with all its connections), or a status.
    `garbled`: shapes of the replies to other calls, by path.
    `dp_size`: of its data-parallel ranks, which share one set of figures but for the requests
    (`by_rank`). `prompt_lens`: the position where a seed's response begins (seed -> prompt tokens).
    """

    dp_size: int = 1
    dp_attention: bool = False
    by_rank: Counter[int] = field(default_factory=Counter)  # running requests
    longest: int = 50  # response tokens
    max_total_num_tokens: int = 100_000
    max_running_requests: int = 1_000
    max_request_len: int | None = None
    page_size: int = 1
    delay_s: float = 0.0
    has_tokenizer: bool = True
    deterministic: bool = True
    plugin: dict[str, Any] | None = None
    has_image_understanding: bool = False
    flags: dict[str, Any] = field(default_factory=dict)  # more fields of `/server_info`
    faults: deque[str] = field(default_factory=deque)
    rejects: Callable[[dict[str, Any]], bool] | None = None  # calls that it answers with 400
    garbled: dict[str, str] = field(default_factory=dict)
    prompt_lens: dict[int, int] = field(default_factory=dict)
    seen: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    foreign_tokens: int = 0  # KV tokens of other clients
    foreign_requests: int = 0  # running requests of other clients
    queued_requests: int = 0
    foreign_reads: int = 0  # of them: wait for KV, although there is room
    kv_reads: dict[str, asyncio.Event] = field(default_factory=dict)  # by rid: ends its wait
    peak_running: int = 0
    steps: int = 0
    polls: int = 0  # reads of the load
    decodes_on: bool = False  # its decode steps advance with every poll, without any reply
    foreign_steps: int = 0
    healthy: bool = True
    api_key: str | None = None
    updates: dict[int, str] = field(default_factory=dict)  # number of calls -> weight version then
    model_path: str = "fake"
    startup_s: float = 20.25  # different for every start
    away: bool = False  # answers control calls with 503
    canned_tokens: int = 0  # if set: the same reply to every call, of the tokens it asks for
    called: asyncio.Event = field(default_factory=asyncio.Event)
    stalled: asyncio.Event = field(
        default_factory=asyncio.Event
    )  # set when the last fault is `stall`
    incremental: bool = False  # as with --incremental-streaming-output
    sessions: bool = False  # as with --enable-session-radix-cache
    closed: list[str] = field(default_factory=list)  # sessions
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    starts: int = 0
    _runner: web.AppRunner | None = None
    _server: asyncio.Server | None = None
    _port: int = 0
    _abort: dict[str, asyncio.Event] = field(default_factory=dict)  # by rid, of running calls
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _shapes: Iterator[str] = field(default_factory=lambda: itertools.cycle(GARBAGE))

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.put("/generate", self.generate),
                web.post("/abort_request", self.abort_request),
                *([web.post("/close_session", self.close_session)] if self.sessions else ()),
                web.get("/server_info", self.server_info),
                web.get("/model_info", self.model_info),
                web.get("/v1/loads", self.loads),
                web.get("/health", self.health),
                *self.control_routes(),
            ]
        )
        return app

    async def generate(self, http: web.Request) -> web.StreamResponse:
        if self.api_key and http.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": {"message": "no token"}}, status=401)
        body = await http.read()
        if self.canned_tokens:
            asked = re.search(rb'"max_new_tokens":([0-9]+)', body)  # fewer in a test of a suspect
            before, after = self._canned(self.canned_tokens if asked is None else int(asked[1]))
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            rid = body[len(b'{"rid":"') : body.index(b'",')]
            return web.Response(body=before + rid + after, content_type="application/json")
        call = msgspec.json.decode(body)
        await self.until_continued()
        self.seen.append(call)
        self.called.set()
        fault = self.fault_of(call) or (self.faults.popleft() if self.faults else "ok")
        rank = call.get("routed_dp_rank", 0)
        self.running += 1
        self.by_rank[rank] += 1
        self.peak_running = max(self.peak_running, self.running)
        try:
            return await self._answer(http, call, fault)
        finally:
            self.running -= 1
            self.by_rank[rank] -= 1

    def fault_of(self, call: dict[str, Any]) -> str:
        """Returns a fault that depends on the call's content; "" for none."""
        return "400" if self.rejects is not None and self.rejects(call) else ""

    async def _answer(
        self, http: web.Request, call: dict[str, Any], fault: str
    ) -> web.StreamResponse:
        if fault == "stall":
            if not self.faults:
                self.stalled.set()
            await self._woken.wait()
        if fault == "lost":
            self.running -= 1
            try:
                await self._woken.wait()
            finally:
                self.running += 1
        if fault == "read" and not reads_none(call):
            await self._read(call["rid"])
        if fault == "reset":
            assert http.transport is not None
            http.transport.abort()
        if fault == "die":
            self.die()
        if fault.isdigit():
            return web.json_response({"error": {"message": f"fault {fault}"}}, status=int(fault))
        if await self._aborted_within(call["rid"], 1.0 if fault == "slow" else self.delay_s):
            fault = "abort"
        self.steps += 1
        self.weight_version = self.updates.get(self.steps, self.weight_version)
        reply = self._reply(call, fault)
        if call.get("stream"):
            return await self._stream(http, reply, fault)
        body = msgspec.json.encode(reply)
        if fault.startswith("garbage"):
            shape = fault.removeprefix("garbage ")
            body = GARBAGE[next(self._shapes) if shape == "garbage" else shape](reply)
        if fault == "mid_body":
            response = web.StreamResponse(headers={"Content-Length": str(len(body))})
            await response.prepare(http)
            await response.write(body[: len(body) // 2])
            assert http.transport is not None
            http.transport.abort()
            return response
        return web.Response(body=body, content_type="application/json")

    async def _read(self, rid: str) -> None:
        """Returns when the call is aborted, or when stalled calls are woken."""
        ended = self._abort[rid] = self.kv_reads[rid] = asyncio.Event()
        self.running -= 1
        try:
            await ended.wait()
        finally:
            self.running += 1
            del self._abort[rid], self.kv_reads[rid]

    async def _aborted_within(self, rid: str, seconds: float) -> bool:
        """Returns whether /abort_request names the call within the time."""
        if not seconds:
            await asyncio.sleep(0)
            return False
        aborted = self._abort[rid] = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await aborted.wait()
        del self._abort[rid]
        return aborted.is_set()

    async def _stream(
        self, http: web.Request, reply: dict[str, Any], fault: str
    ) -> web.StreamResponse:
        """Sends the reply as server-sent events of STREAMED tokens; `mid_body` ends half-way."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        meta = reply["meta_info"]
        tokens = meta["output_token_logprobs"]
        ends = [*range(STREAMED, len(tokens), STREAMED), len(tokens)]
        for begin, end in itertools.pairwise([0, *ends]):
            if fault == "mid_body" and end > len(tokens) // 2:
                assert http.transport is not None
                http.transport.abort()
                return response
            last = end == len(tokens)
            shown = tokens[begin if self.incremental else 0 : end]
            event = {**meta, "output_token_logprobs": shown, "completion_tokens": end}
            event["finish_reason"] = meta["finish_reason"] if last else None
            await response.write(b"data: " + msgspec.json.encode({"meta_info": event}) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def _reply(self, call: dict[str, Any], fault: str = "ok") -> dict[str, Any]:
        params, ids = call["sampling_params"], call["input_ids"]
        seed, budget = params["sampling_seed"], params["max_new_tokens"]
        prompt_len = self.prompt_lens.setdefault(seed, len(ids))
        done = len(ids) - prompt_len
        new = response_of(seed, prompt_len, self.longest, slice(done, done + budget))
        if fault in ("abort", "abort_queued"):
            new = new[: len(new) // 2] if fault == "abort" else []
        if fault.startswith("abort"):
            finish: dict[str, Any] = {"type": "abort", "message": "aborted"}
        elif new and new[-1] == EOS:
            finish = {"type": "stop", "matched": EOS}
        else:
            finish = {"type": "length", "length": budget}
        return {
            "text": "ignored",
            "output_ids": new,
            "meta_info": {
                "id": call["rid"],
                "finish_reason": finish,
                "prompt_tokens": len(ids),
                "completion_tokens": len(new),
                "output_token_logprobs": [[-1.0 - token / VOCAB, token, None] for token in new],
                "weight_version": self.weight_version,
                "cached_tokens": max(0, len(ids) - 1),
                "num_retractions": 0,
                "unknown_field": {"later": ["versions", "may", "add"]},
            },
        }

    @functools.cache  # noqa: B019 (few per server)
    def _canned(self, tokens: int) -> tuple[bytes, bytes]:
        """Returns the bytes of a reply before and after the rid, for the benchmark."""
        endless = (self.longest - 1) << 7  # the seed of the longest response
        budget = {"sampling_seed": endless, "max_new_tokens": tokens}
        call = {"rid": "RID", "input_ids": [], "sampling_params": budget}
        reply = self._reply(call)
        reply["meta_info"]["finish_reason"] = {"type": "length", "length": tokens}
        before, _, after = msgspec.json.encode(reply).partition(b"RID")
        return before, after

    async def abort_request(self, http: web.Request) -> web.Response:
        """Records the abort. Like SGLang, it needs the id of a call, and ends all that begin so."""
        rid = (await http.json())["rid"]
        self.aborted.append(rid)
        if rid in self._abort:
            for running, aborted in self._abort.items():
                if running.startswith(rid):
                    aborted.set()
        return web.json_response({})

    async def close_session(self, http: web.Request) -> web.Response:
        """Records the end of a session, as SGLang does of one that it does not know too."""
        self.closed.append((await http.json())["session_id"])
        return web.Response()

    async def server_info(self, _: web.Request) -> web.Response:
        """Returns the fields of SGLang 0.5.21 that the client reads, and others that it ignores."""
        if self.away:
            return web.Response(status=503)
        return self._control(
            "/server_info",
            {
                "version": "0.5.21",
                "max_total_num_tokens": self.max_total_num_tokens,
                "max_req_input_len": self.max_request_len or self.max_total_num_tokens - 6,
                "page_size": self.page_size,
                "disable_radix_cache": False,
                "dp_size": self.dp_size,
                "enable_dp_attention": self.dp_attention,
                "tp_size": self.tp_size,
                "enable_deterministic_inference": self.deterministic,
                "skip_tokenizer_init": not self.has_tokenizer,
                "enable_memory_saver": False,
                "enable_session_radix_cache": self.sessions,
                "incremental_streaming_output": self.incremental,
                "internal_states": [self._state(rank) for rank in reversed(range(self.dp_size))],
                # The weights of its start, which no update changes.
                "model_path": "the first",
                "weight_version": "default",
                **self.flags,
            },
        )

    def _state(self, rank: int) -> dict[str, Any]:
        plugin = self.plugin and {**self.plugin, "waiting": [*self.kv_reads], "dp_rank": rank}
        if plugin and self.dp_size > 1:
            plugin["instance"] = f"{plugin['instance']}.dp{rank}"
        return {
            "effective_max_running_requests_per_dp": self.max_running_requests,
            "seer_sgl": plugin,
            "startup_time": {"scheduler_e2e": self.startup_s},
            "memory_usage": {"token_capacity": self.max_total_num_tokens - rank},
        }

    async def model_info(self, _: web.Request) -> web.Response:
        """Returns the weights of now, and one field that the client ignores."""
        if self.away:
            return web.Response(status=503)
        served = {"model_path": self.model_path, "weight_version": self.weight_version}
        facts = {"is_generation": True, "has_image_understanding": self.has_image_understanding}
        return self._control("/model_info", {**served, **facts})

    async def loads(self, _: web.Request) -> web.Response:
        """Returns a load that changes only while chunks are answered, as in a real server."""
        self.polls += 1
        if self.away:
            return web.Response(status=503)
        self.foreign_steps += self.decodes_on
        entries = [self._load(rank) for rank in range(self.dp_size)]
        return self._control("/v1/loads", {"loads": entries})

    def _load(self, rank: int) -> dict[str, Any]:
        running = self.running if self.dp_size == 1 else self.by_rank[rank]
        return {
            "dp_rank": rank,
            "num_running_reqs": running + self.foreign_requests,
            "num_waiting_reqs": self.queued_requests + len(self.kv_reads),
            "disaggregation": {
                "decode_transfer_queue_reqs": self.foreign_reads + len(self.kv_reads)
            },
            "num_used_tokens": 10 * running + self.foreign_tokens,
            "decode_moments": [float(self.steps + self.foreign_steps)],
        }

    def _control(self, path: str, reply: dict[str, Any]) -> web.Response:
        shape = self.garbled.get(path)
        garble = msgspec.json.encode if shape is None else CONTROL[path][shape]
        return web.Response(body=garble(reply), content_type="application/json")

    async def health(self, _: web.Request) -> web.Response:
        """Answers `/health` with the status that the test has set."""
        return web.Response(status=200 if self.healthy else 503)

    async def start(self) -> str:
        """Starts to listen, on the port of before if it has died; returns the URL."""
        if self._runner is not None:
            await self._runner.cleanup()
        self.starts += 1
        self.startup_s += 1.0  # another start
        self.dead.clear()
        self._runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        assert site._server is not None
        self._server = cast("asyncio.Server", site._server)  # of uvloop as a program
        self._port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{self._port}"

    def die(self) -> None:
        """Closes its port and all its connections at once, as a killed process does."""
        assert self._server is not None
        loop = asyncio.get_running_loop()
        for listening in self._server.sockets:
            loop.remove_reader(listening.fileno())
        self.dead.set()
        self._abort_connections(DYING_TURNS)

    def _abort_connections(self, turns: int) -> None:
        """Aborts all connections, and closes the port in the last of so many turns of the loop.

        asyncio finishes what it has accepted in later turns, and leaks it if the port is closed.
        """
        assert self._runner is not None
        assert self._server is not None
        for connection in self._runner.server.connections if self._runner.server else ():
            if connection.transport is not None:
                connection.transport.abort()
        if turns:
            asyncio.get_running_loop().call_soon(self._abort_connections, turns - 1)
        else:
            self._server.close()

    async def close(self) -> None:
        """Ends the server, dead or alive."""
        self.wake_stalled()
        if self._runner is not None:
            await self._runner.cleanup()

    def wake_stalled(self) -> None:
        self._woken.set()
        for ended in self.kv_reads.values():
            ended.set()


@contextlib.asynccontextmanager
async def serving(fake: FakeSGLang) -> AsyncIterator[str]:
    """Serves on a free loopback port; yields the URL."""
    try:
        yield await fake.start()
    finally:
        await fake.close()


@contextlib.asynccontextmanager
async def serving_all(fakes: Iterable[FakeSGLang]) -> AsyncIterator[list[str]]:
    """Serves fakes that share where responses begin (`prompt_lens`); yields their URLs."""
    prompt_lens: dict[int, int] = {}
    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for fake in fakes:
            fake.prompt_lens = prompt_lens
            urls.append(await stack.enter_async_context(serving(fake)))
        yield urls


async def _serve_for_ever(options: dict[str, Any]) -> None:
    import uvloop

    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    count = options.pop("count", 1)
    async with serving_all([FakeSGLang(**options) for _ in range(count)]) as urls:
        print(json.dumps(urls), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    gc.disable()  # a fake keeps every call: searching them for garbage would count as its latency
    uvloop.run(_serve_for_ever(json.loads(sys.argv[1])))
