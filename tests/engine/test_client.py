"""The HTTP client against a fake server on a real socket: requests, replies and failures."""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from seer_sgl.engine import wire
from seer_sgl.engine.answers import ask_object
from seer_sgl.engine.client import HEALTH_TIMEOUT_S, HttpEngine
from seer_sgl.engine.describe import describe, described
from seer_sgl.engine.server_calls import ServerCalls, decode_control
from seer_sgl.engine.session import PROBES, open_session, probing_socket
from seer_sgl.engine_types import EngineInfo, ServerState
from seer_sgl.errors import (
    BadReply,
    EngineDied,
    EngineStartError,
    EngineUnavailable,
    RequestRejected,
)
from seer_sgl.link.contract import MAX_COUNT
from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import Chunk, ChunkReply, Request
from tests.fake_sglang import VOCAB, FakeSGLang, response_of, serving
from tests.garbage import CONTROL, DEEP, STATE
from tests.helpers import make_group, make_reply
from tests.support.infos import chunk_on, info
from tests.support.waiting import jump, outlast

ALWAYS = Timing(refresh_every_s=0.0)  # every poll checks the weights


@contextlib.asynccontextmanager
async def joined(
    fake: FakeSGLang, api_key: str | None = None, timing: Timing = DEFAULT
) -> AsyncIterator[HttpEngine]:
    async with serving(fake) as url, open_session(api_key) as session:
        (info,) = await describe(session, "e0", url)
        yield HttpEngine(info, session, timing=timing)


def chunk_of(request: Request | None = None, budget: int = 10) -> Chunk:
    asked = chunk_on("e0", request or make_group(n=1).requests[0])
    return msgspec.structs.replace(asked, max_new_tokens=budget)


async def generate(engine: HttpEngine) -> None:
    assert (await engine.generate(chunk_of())).ids


async def test_a_chunk_carries_prompt_and_response_and_comes_back_typed() -> None:
    fake = FakeSGLang(longest=1)
    request = make_group(n=1).requests[0]
    request.seed = 5
    request.append(make_reply(3))
    fake.prompt_lens[5] = request.total_len
    async with joined(fake) as engine:
        reply = await engine.generate(chunk_of(request))
    sent = fake.seen[0]
    assert sent["input_ids"] == [*range(10), 1, 2, 3]
    assert sent["rid"] == "g.0.c1/"
    assert sent["return_logprob"] is True
    assert sent["sampling_params"]["max_new_tokens"] == 10
    assert sent["sampling_params"]["sampling_seed"] == 5
    assert "stop" not in sent["sampling_params"]
    assert list(reply.ids) == response_of(5, request.total_len, 1)
    assert (reply.finish, reply.matched, reply.cached_device) == ("stop", 0, 12)
    assert [span.version for span in reply.weight_spans] == ["v1"]


@pytest.mark.parametrize(
    ("shape", "kind"), [("another count", BadReply), ("endless", EngineUnavailable)]
)
async def test_a_reply_that_cannot_be_true_is_the_engines_fault(
    shape: str, kind: type[EngineUnavailable]
) -> None:
    fake = FakeSGLang(faults=deque([f"garbage {shape}"]))
    async with joined(fake) as engine:
        engine.vocab_size = VOCAB
        with pytest.raises(kind, match="engine e0"):
            await generate(engine)
        await generate(engine)  # it works again afterwards


@pytest.mark.parametrize("shape", CONTROL["/v1/loads"])
async def test_a_garbled_load_makes_an_engine_unavailable(shape: str) -> None:
    fake = FakeSGLang(garbled={"/v1/loads": shape})
    async with joined(fake) as engine:
        with pytest.raises(EngineUnavailable, match="engine e0"):
            await engine.load()


@pytest.mark.parametrize(
    ("path", "shape"),
    [(path, shape) for path in ("/server_info", "/model_info") for shape in CONTROL[path]],
)
async def test_a_garbled_description_is_refused_whoever_asks_for_it(path: str, shape: str) -> None:
    fake = FakeSGLang()
    async with joined(fake) as engine:
        fake.garbled = {path: shape}
        assert "engine e0" in str(await engine.problem())
        async with open_session() as session:
            with pytest.raises(EngineUnavailable, match="engine e0"):
                await describe(session, "e0", engine.info.url)


@pytest.mark.parametrize("shape", ["bad UTF-8", "deep", "endless"])
async def test_an_answer_that_is_no_object_is_the_engines_fault(shape: str) -> None:
    fake = FakeSGLang()
    async with joined(fake) as engine:
        assert (await ask_object(engine, "/model_info"))["weight_version"] == "v1"
        fake.garbled = {"/model_info": shape}
        with pytest.raises(EngineUnavailable, match="engine e0"):
            await ask_object(engine, "/model_info")


def description(body: bytes) -> EngineInfo:
    """Returns the description in a body that answers `/server_info` and `/model_info`."""
    server = decode_control(body, wire.ServerInfo, "/server_info")
    model = decode_control(body, wire.ModelInfo, "/model_info")
    return described(server, model, "e0", "u")


class CannedCalls(ServerCalls):
    """Has the same reply to every call."""

    canned = b""

    @override
    async def reply(self, *_: object, **__: object) -> bytes:
        return self.canned


class Canned(HttpEngine):
    """An engine that returns the same reply to every call."""

    def __init__(self, info: EngineInfo) -> None:
        super().__init__(info, cast(Any, None))
        self.reply = b""

    @property
    @override
    def _calls(self) -> ServerCalls:
        calls = CannedCalls(*super()._calls)
        calls.canned = self.reply
        return calls

    async def _keep_up(self) -> None:
        with contextlib.suppress(EngineUnavailable, EngineStartError):
            description(self.reply)


INFO = {
    "version": "0.5.21",
    "model_path": "m",
    "max_total_num_tokens": 100,
    "max_req_input_len": 94,
    "page_size": 1,
    "disable_radix_cache": False,
    "dp_size": 1,
    "weight_version": "v1",
    "enable_deterministic_inference": True,
    "skip_tokenizer_init": False,
}
TRUE_REPLY = {
    "id": "g.0.c1/",
    "finish_reason": {"type": "length"},
    "completion_tokens": 1,
    "output_token_logprobs": [[-1.0, 5, None]],
}
REPORT = ["version", "missing", "instance", "vocab_size", "pool", "draft", "work"]
INSIDE = ["namespace", "kv_bytes_per_token", "draft_tokens", "forward_steps", "num_used_tokens"]
VALUES = st.recursive(
    st.sampled_from([None, True, -1, 0, 1, 7, 1 << 63, 0.5, "", "1", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INSIDE), inner, max_size=4)
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    state=st.dictionaries(st.sampled_from(REPORT), VALUES, max_size=3),
    other=st.dictionaries(st.sampled_from([*INFO, "loads", "meta_info"]), VALUES, max_size=2),
    cuts=st.lists(st.tuples(st.integers(0, 500), st.binary(max_size=3)), max_size=2),
)
def test_whatever_a_server_replies_its_callers_see_one_kind_of_error(
    state: dict[str, Any], other: dict[str, Any], cuts: list[tuple[int, bytes]]
) -> None:
    """The body is a valid reply to every call, except for the changes made to it."""
    report = {"version": "1", "missing": [], **state}
    states = [{"effective_max_running_requests_per_dp": 4, "seer_sgl": report}]
    true = {"meta_info": TRUE_REPLY, "loads": [{}], **INFO, "internal_states": states}
    engine = Canned(description(msgspec.json.encode(true | {"internal_states": [STATE]})))
    body = bytearray(msgspec.json.encode(true | other))
    for at, new in cuts:
        body[at : at + len(new)] = new
    engine.reply = bytes(body)
    with contextlib.suppress(EngineUnavailable, EngineStartError):
        assert description(engine.reply).draft_tokens >= 0
    chunk = chunk_of()

    async def ask_all() -> None:
        calls: list[Coroutine[Any, Any, object]] = [
            *[engine.generate(chunk), engine.load(), engine.drafting(), engine.work()]
        ]
        for call in calls:
            with contextlib.suppress(EngineUnavailable):
                await call

    asyncio.run(ask_all())


def test_a_server_that_only_prefills_or_only_decodes_is_refused() -> None:
    whole = INFO | {"internal_states": [STATE], "disaggregation_mode": "null"}
    assert description(msgspec.json.encode(whole)).engine_id == "e0"
    with pytest.raises(EngineStartError, match=r"e0 \(u\): disaggregation-mode decode; an engine"):
        description(msgspec.json.encode(whole | {"disaggregation_mode": "decode"}))


async def test_an_explanation_is_one_short_line_whatever_it_is() -> None:
    class Explains(FakeSGLang):
        explanation: bytes = b""

        async def loads(self, _: web.Request) -> web.Response:
            return web.Response(status=500, body=self.explanation)

    fake = Explains()
    async with joined(fake) as engine:
        for explanation in (
            b'{"error":{"message":"' + b"a\\n" * 10_000 + b'"}}',
            b'{"error":{"message":[1]}}',
            b'{"error":{"message":"\xff"}}',
            b'{"error":' + b"[" * DEEP,
            b"\xff" * 1000,
        ):
            fake.explanation = explanation
            with pytest.raises(EngineUnavailable, match="HTTP 500 on /v1/loads: ") as raised:
                await engine.load()
            assert len(str(raised.value)) < 600
            assert "\n" not in str(raised.value)


OTHER_4XX = ("401", "403", "404", "405", "408", "409", "410", "415", "429")


@pytest.mark.parametrize("fault", ["reset", "mid_body", "500", "503", *OTHER_4XX])
async def test_a_failing_engine_is_unavailable(fault: str) -> None:
    again = [fault] if fault == "reset" else []  # it is sent once more on a new connection
    async with joined(FakeSGLang(faults=deque([fault, *again]))) as engine:
        with pytest.raises(EngineUnavailable, match="engine e0") as raised:
            await generate(engine)
        assert (f"HTTP {fault}" in str(raised.value)) is fault.isdigit()
        await generate(engine)  # it works again afterwards


class Closing(FakeSGLang):
    """Closes a connection at the next request after a 500, as SGLang's uvicorn may."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.broken: set[object] = set()
        self.reused = 0

    async def generate(self, http: web.Request) -> web.StreamResponse:
        if http.transport in self.broken:
            self.reused += 1
            assert http.transport is not None
            http.transport.abort()
            await asyncio.Event().wait()
        answer = await super().generate(http)
        if answer.status == 500:
            self.broken.add(http.transport)
        return answer


async def test_a_connection_is_not_used_again_after_a_500() -> None:
    fake = Closing(faults=deque(["500"] * 6))
    async with joined(fake) as engine:

        async def fails() -> None:
            with pytest.raises(EngineUnavailable, match="HTTP 500"):
                await generate(engine)

        await asyncio.gather(*(fails() for _ in range(6)))
        await generate(engine)
    assert not fake.reused


async def test_a_request_that_an_idle_connection_loses_is_sent_again_once_per_connection() -> None:
    fake = FakeSGLang()
    async with joined(fake) as engine:
        await asyncio.gather(*(generate(engine) for _ in range(4)))
        fake.faults.append("reset")
        await generate(engine)
        fake.faults.extend(["reset"] * 20)
        with pytest.raises(EngineUnavailable):
            await generate(engine)
        assert len(fake.faults) >= 20 - 5


async def test_a_server_that_dies_at_once_has_died_although_the_request_was_sent_again() -> None:
    fake = FakeSGLang()
    async with joined(fake) as engine:
        await generate(engine)
        fake.faults.append("die")
        with pytest.raises(EngineDied):
            await generate(engine)


class Gone:
    """A session with a server that has died: chunks break at once, looks at it when they may."""

    def __init__(self) -> None:
        self.looked, self.may_break = asyncio.Event(), asyncio.Event()

    async def request(self, method: str, *_: object, **__: object) -> None:
        if method == "GET":
            self.looked.set()
            await self.may_break.wait()
        raise aiohttp.ServerDisconnectedError


async def test_a_cancelled_look_at_a_server_does_not_decide_for_the_other_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Gone()
    engine = HttpEngine(info("e0"), cast(aiohttp.ClientSession, session))
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 1.0)  # both break at once
    first, second = (asyncio.create_task(engine.generate(chunk_of())) for _ in range(2))
    await session.looked.wait()
    first.cancel()
    session.may_break.set()
    with pytest.raises(EngineDied):
        await second
    await asyncio.wait({first})
    assert first.cancelled()


async def test_what_an_engine_has_counted_of_drafting_comes_with_its_name() -> None:
    plugin = {"version": "1", "missing": [], "instance": "i", "draft": {"draft_tokens": 4}}
    async with joined(FakeSGLang(plugin=plugin)) as engine:
        assert await engine.drafting() == {"instance": "i", "draft_tokens": 4}
    async with joined(FakeSGLang(plugin=None)) as stock:
        assert await stock.drafting() is None


@pytest.mark.parametrize("status", ["400", "413", "422"])
async def test_a_refusal_of_sglang_rejects_the_request_with_the_servers_words(status: str) -> None:
    async with joined(FakeSGLang(faults=deque([status]))) as engine:
        with pytest.raises(RequestRejected, match=f"HTTP {status}: fault {status}"):
            await generate(engine)


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (b'{"error":{"message":"The input is too long"}}', True),
        (
            b'{"object":"error","message":"1 validation error","type":"Bad Request","param":null,'
            b'"code":400}',
            True,
        ),
        (b'{"error":"Unauthorized"}', False),
        (b'{"detail":"Not Found"}', False),
        (b"<html>400 Bad Request</html>", False),
        (b'{"message":"upstream says no"}', False),
        (b"[]", False),
        (b"", False),
    ],
)
def test_a_400_that_is_not_sglangs_says_nothing_about_the_request(
    body: bytes, refusal: bool
) -> None:
    assert (wire.refusal(body) is not None) is refusal


async def test_a_refused_connection_is_unavailable() -> None:
    async with joined(FakeSGLang()) as engine:
        pass
    async with open_session() as session:
        gone = HttpEngine(engine.info, session)
        with pytest.raises(EngineUnavailable, match="engine e0"):
            await gone.generate(chunk_of())
        with pytest.raises(EngineUnavailable):
            await gone.load()
        with pytest.raises(EngineUnavailable):
            await gone.drafting()
        assert "Cannot connect" in str(await gone.problem())
        dead = HttpEngine(engine.info, session, lambda: ServerState(why="it ended, status 3"))
        with pytest.raises(EngineUnavailable, match=r"engine e0 .*: it ended, status 3"):
            await dead.load()


async def test_an_abort_returns_the_partial_output_but_its_unexamined_last_token() -> None:
    request = make_group(n=1).requests[0]
    request.seed = 19 << 7
    async with joined(FakeSGLang(faults=deque(["abort"]), longest=20)) as engine:
        reply = await engine.generate(chunk_of(request, 12))
    assert reply.finish == "abort"
    assert list(reply.ids) == response_of(request.seed, request.prompt_len, 20)[:5]
    assert len(reply.logprobs) == sum(span.tokens for span in reply.weight_spans) == 5


async def test_cancelling_a_chunk_aborts_it_on_the_server() -> None:
    fake = FakeSGLang(faults=deque(["stall"]))
    async with joined(fake) as engine:
        task = asyncio.create_task(engine.generate(chunk_of()))
        await fake.called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert fake.aborted == ["g.0.c1/"]


class Asked(FakeSGLang):
    """A fake whose health check answers once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    @override
    async def health(self, http: Any) -> Any:
        self.asked.set()
        await self.answers.wait()
        return await super().health(http)


async def test_a_driver_that_stood_still_does_not_blame_the_engine() -> None:
    fake = Asked()
    async with joined(fake) as engine:
        asking = asyncio.create_task(engine.problem())
        await fake.asked.wait()
        jump(HEALTH_TIMEOUT_S)
        await asyncio.sleep(0)
        fake.answers.set()
        assert await asking is None
        fake.asked.clear()
        fake.answers.clear()
        asking = asyncio.create_task(engine.problem())
        await fake.asked.wait()
        await outlast(HEALTH_TIMEOUT_S)
        problem = await asking
        assert problem is not None and "no answer on /health within" in problem.why
        fake.answers.set()


async def test_the_kernel_probes_the_connections_of_silent_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[socket.socket] = []

    def remembered(address: Any) -> socket.socket:
        used.append(probing_socket(address))
        return used[-1]

    monkeypatch.setattr("seer_sgl.engine.session.probing_socket", remembered)
    fake = FakeSGLang(faults=deque(["stall"]))
    async with joined(fake) as engine:
        chunk = asyncio.create_task(engine.generate(chunk_of()))
        await fake.called.wait()
        for made in used:
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            for name, value in PROBES.items():
                assert made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
        fake.wake_stalled()
        await chunk
    assert used


async def test_what_an_engine_runs_is_known_where_sglang_counts_all_of_it() -> None:
    async with joined(FakeSGLang(foreign_requests=3)) as engine:
        assert (await engine.load()).requests == 3
        engine._info = msgspec.structs.replace(engine.info, pipeline_stages=2)
        assert (await engine.load()).requests is None
    assert wire.LoadEntry(num_running_reqs=3).requests is None, (
        "the server does not report waiting requests"
    )
    busy = wire.LoadEntry(num_running_reqs=3, num_waiting_reqs=2)
    assert busy.requests == 5
    assert busy.progress == wire.LoadEntry(num_running_reqs=3, num_waiting_reqs=9).progress


@pytest.mark.parametrize(("reading", "waiting"), [(0, 0), (2, 2), (9, 5), (-3, 0)])
async def test_requests_that_wait_for_kv_are_not_queued_for_room(
    reading: int, waiting: int
) -> None:
    fake = FakeSGLang(foreign_requests=3, queued_requests=5, foreign_reads=reading)
    async with joined(fake) as engine:
        load = await engine.load()
        assert (load.running, load.requests) == (3, 8)
        assert (load.queued, load.kv_waiting) == (5 - waiting, waiting)


@pytest.mark.parametrize(("count", "read"), [(-1, 0), (1 << 70, MAX_COUNT)])
async def test_impossible_counts_stay_in_the_range_of_a_recorder(count: int, read: int) -> None:
    async with joined(FakeSGLang(foreign_requests=count, queued_requests=count)) as engine:
        load = await engine.load()
        assert (load.running, load.queued) == (read, read)


async def test_load_and_health() -> None:
    fake = FakeSGLang()
    async with joined(fake) as engine:
        before = await engine.load()
        await engine.generate(chunk_of())
        after = await engine.load()
        assert before.used_tokens == 0
        assert before.progress != after.progress
        assert await engine.problem() is None
        fake.healthy = False
        assert "HTTP 503" in str(await engine.problem())


class Stuck(FakeSGLang):
    """Its HTTP server answers, its scheduler does not."""

    @override
    async def flush(self, fields: dict[str, Any]) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_server_that_hangs_cannot_hold_up_who_gives_it_weights() -> None:
    short = Timing(flush_s=0.05, control_timeout_s=0.2)
    fake = Stuck(plugin={"version": "1", "missing": [], "instance": "i", "weights": "first"})
    async with joined(fake, timing=short) as engine:
        other = msgspec.structs.replace(engine.info, weights="new", weight_version="v2")
        assert "no answer on /flush_cache" in str(await engine.restore(other))


class Together(FakeSGLang):
    """Once `paired`, answers no look and no load before both were asked for."""

    paired = False

    @override
    def app(self) -> web.Application:
        asked: set[str] = set()
        both = asyncio.Event()

        @web.middleware
        async def together(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self.paired:
                asked.add(request.path)
                if "/v1/loads" in asked and len(asked) > 1:
                    both.set()
                await both.wait()
            return await handler(request)

        app = super().app()
        app.middlewares.append(together)
        return app


@pytest.mark.parametrize("looked_before", [False, True])
async def test_the_calls_of_a_poll_do_not_wait_for_each_other(looked_before: bool) -> None:
    fake = Together()
    async with joined(fake) as engine:
        if looked_before:
            await engine.load()
        fake.paired, fake.weight_version = True, "v2"
        assert (await engine.load()).used_tokens == 0
        assert engine.info.weight_version == "v2"


def pooled(instance: str, namespace: str = "n", weights: str = "w1") -> dict[str, object]:
    pool = {"namespace": namespace, "kv_bytes_per_token": 8}
    return {"version": "1", "missing": [], "instance": instance, "pool": pool, "weights": weights}


async def test_an_engine_that_was_restarted_is_known_by_its_new_name() -> None:
    fake = FakeSGLang(plugin=pooled("first"))
    async with joined(fake) as engine:
        fake.plugin = pooled("second")
        assert await engine.problem() is None
        assert engine.info.instance == "second"
        fake.plugin = pooled("second", "another layout")
        assert "came back with another pool" in str(await engine.problem())


def restart(fake: FakeSGLang, weights: str = "w1") -> None:
    fake.startup_s += 1
    if fake.plugin is not None:
        fake.plugin = pooled("second", weights=weights)


@pytest.mark.parametrize("plugin", [None, pooled("first")], ids=["stock", "plugin"])
@pytest.mark.parametrize("shown_by", [generate, HttpEngine.load, HttpEngine.problem])
async def test_an_engine_restarted_must_have_the_weights_of_the_first_sign_of_an_update(
    plugin: dict[str, Any] | None, shown_by: Callable[[HttpEngine], Awaitable[object]]
) -> None:
    fake = FakeSGLang(plugin=plugin)
    async with joined(fake, timing=ALWAYS) as engine:
        fake.weight_version = "v2"
        await shown_by(engine)
        restart(fake)
        fake.weight_version = "v1"
        assert "weight_version (v1, not v2)" in str(await engine.problem())
        fake.weight_version = "v2"
        assert await engine.problem() is None


@pytest.mark.parametrize("plugin", [None, pooled("first")], ids=["stock", "plugin"])
async def test_an_engine_restarted_unnoticed_is_unavailable_until_it_is_compared(
    plugin: dict[str, Any] | None,
) -> None:
    fake = FakeSGLang(plugin=plugin)
    async with joined(fake, timing=ALWAYS) as engine:
        await generate(engine)
        restart(fake)
        fake.weight_version = "v0"
        with pytest.raises(EngineUnavailable, match="restarted"):
            await generate(engine)
        with pytest.raises(EngineUnavailable, match="restarted"):
            await engine.load()
        assert "weight_version (v0, not v1)" in str(await engine.problem())


@pytest.mark.parametrize("incremental", [False, True], ids=["cumulative", "incremental"])
@pytest.mark.parametrize("plugin", [None, pooled("first")], ids=["stock", "plugin"])
async def test_a_stream_of_an_engine_restarted_unnoticed_yields_no_tokens(
    plugin: dict[str, Any] | None, incremental: bool
) -> None:
    fake = FakeSGLang(plugin=plugin, incremental=incremental)
    request = make_group(n=1).requests[0]
    request.seed = 40 << 7  # a response of several events
    async with joined(fake) as engine:
        streamed: list[ChunkReply] = []
        await engine.generate(chunk_of(request), streamed.append)
        assert len(streamed) > 1
        fake.weight_version = "v2"
        await engine.generate(chunk_of(request), streamed.append)
        assert engine.info.weight_version == "v2", "updated without a restart"
        streamed.clear()
        restart(fake)
        fake.weight_version = "v0"
        with pytest.raises(EngineUnavailable, match="restarted"):
            await engine.generate(chunk_of(request), streamed.append)
        assert streamed == []


async def test_weights_updated_without_a_name_are_missed_in_an_engine_restarted() -> None:
    fake = FakeSGLang(plugin=pooled("first", weights="w1"))
    async with joined(fake, timing=ALWAYS) as engine:
        fake.plugin = pooled("first", weights="w2")
        await engine.load()
        assert engine.info.weights == "w2"
        restart(fake, "w1")
        problem = str(await engine.problem())
        assert "another weights under the same weight_version (v1)" in problem
        restart(fake, "w2")
        assert await engine.problem() is None


async def test_a_living_engine_may_be_updated_from_another_folder() -> None:
    fake = FakeSGLang()
    async with joined(fake, timing=ALWAYS) as engine:
        fake.model_path = "step-1"
        assert await engine.problem() is None
        restart(fake)
        fake.model_path = "fake"
        assert "another model_path" in str(await engine.problem())


async def test_a_server_that_does_not_show_its_start_may_be_another() -> None:
    fake = FakeSGLang(plugin={"version": "1", "missing": []})
    async with joined(fake) as engine:
        assert await engine.problem() is None
        fake.weight_version = "v2"
        assert "weight_version (v2, not v1)" in str(await engine.problem())


async def test_a_look_that_fails_leaves_the_load_to_show_whether_the_engine_lives() -> None:
    fake = FakeSGLang(plugin=pooled("first"))
    async with joined(fake) as engine:
        fake.plugin = {"version": "1", "missing": ["sglang.x"]}
        assert (await engine.load()).used_tokens == 0
        assert engine.info.weights == "w1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("has_tokenizer", False),
        ("max_running_requests", 7),
        ("page_size", 2),
        ("max_total_num_tokens", 50),
    ],
)
async def test_what_a_rollout_was_planned_with_must_not_change(name: str, value: int) -> None:
    fake = FakeSGLang()
    async with joined(fake) as engine:
        setattr(fake, name, value)
        assert f"came back with another {name}" in str(await engine.problem())


async def test_a_chunk_is_sent_with_the_token() -> None:
    fake = FakeSGLang(api_key="secret")
    async with joined(fake, api_key="secret") as engine:
        await generate(engine)
    async with joined(fake) as engine:
        with pytest.raises(EngineUnavailable, match="401"):
            await generate(engine)


async def test_a_server_whose_plugin_failed_is_refused_and_a_stock_one_is_not() -> None:
    async with joined(FakeSGLang()) as engine:
        assert engine.info.plugin is None
    async with joined(FakeSGLang(plugin={"version": "9", "missing": []})) as engine:
        assert engine.info.plugin == "9"
    with pytest.raises(EngineStartError, match=r"could not hook sglang\.x"):
        async with joined(FakeSGLang(plugin={"version": "9", "missing": ["sglang.x"]})):
            pass


async def test_something_that_is_not_sglang_is_refused() -> None:
    class Odd(FakeSGLang):
        async def server_info(self, _: object) -> web.Response:
            return web.json_response({"hello": 1})

    with pytest.raises(EngineUnavailable, match="not a supported SGLang server"):
        async with joined(Odd()):
            pass


@pytest.mark.parametrize(("draft", "tokens"), [(None, 0), ({}, 0), ({"draft_tokens": 17}, 17)])
async def test_the_plugin_tells_what_drafts_need(draft: dict[str, int] | None, tokens: int) -> None:
    plugin: dict[str, object] = {"version": "1", "missing": [], "draft": draft}
    async with joined(FakeSGLang(plugin=plugin)) as engine:
        assert engine.info.draft_tokens == tokens
