"""The front's calls of the control plane: refusals are answers, and so is a lost server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from seer_openrlhf.broadcasts import UPDATE as BUCKET
from seer_openrlhf.client import Server, ServerError
from seer_openrlhf.front import Front
from seer_openrlhf.weight_clock import BEGIN, END

Json = dict[str, Any]
META = {"input_token_logprobs": [[None, 5, None], [-0.5, 6, None], [-1.5, 7, None]]}


class FakePaths:
    """Answers by path, and records the paths."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.answers: dict[str, tuple[int, Any]] = {}

    async def handle(self, request: web.Request) -> web.Response:
        """Answers what the test has set."""
        self.seen.append(f"{request.method} {request.path_qs} {request.headers['Authorization']}")
        status, body = self.answers.get(request.path, (200, {"success": True}))
        return web.json_response(body, status=status)


@asynccontextmanager
async def answering() -> AsyncIterator[tuple[FakePaths, Front]]:
    """Yields the answers of a server, and a front of it."""
    control = FakePaths()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", control.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server = Server(f"http://127.0.0.1:{port}", token="t", admin_token="a", timeout_s=30.0)
    try:
        yield control, Front(server, executor=None)
    finally:
        await server.close()
        await runner.cleanup()


async def test_a_refusal_is_an_answer_and_needs_the_admin_token() -> None:
    async with answering() as (control, front):
        engines = {"e0": {"status": None, "reply": "gone"}}
        refusal = {"success": False, "message": "no", "engines": engines}
        control.answers["/begin_weight_update"] = (502, refusal)
        answer = await front.update("/begin_weight_update?timeout=60", {})
        assert answer == {**refusal, "ends": 0}
        control.answers["/end_weight_update"] = (401, {"error": "Unauthorized"})
        answer = await front.update("/end_weight_update", {})
        assert answer == {"success": False, "error": "Unauthorized", "ends": 0}
        assert (await front.update("/workers", None))["success"]
        assert control.seen == [
            "POST /begin_weight_update?timeout=60 Bearer a",
            "POST /end_weight_update Bearer a",
            "GET /workers Bearer a",
        ]


async def test_weights_are_sent_once_engines_have_all_of_them() -> None:
    fails = (400, {"success": False, "engines": {"e0": {"status": 400, "reply": "no memory"}}})
    one = {"e0": {"status": None, "reply": "gone"}, "e1": {"status": 200, "reply": {}}}
    part = (200, {"success": True, "engines": one})
    done = (200, {"success": True})
    disk = "/update_weights_from_disk"

    async def sent(*calls: tuple[str, tuple[int, Any]]) -> int | None:
        async with answering() as (control, front):
            for path, answer in calls:
                control.answers[path] = answer
                await front.update(path, {"weight_version": "3"} if path.startswith("/up") else {})
            assert front._weights.version in (0, 3)
            return front._weights.sent

    assert await sent((BEGIN, done), (BUCKET, done), (BUCKET, done), (END, part)) == 3
    for bucket in (fails, part):
        assert await sent((BEGIN, done), (BUCKET, done), (BUCKET, bucket), (END, done)) is None
    assert await sent((BEGIN, done), (BUCKET, done), (END, fails)) is None
    assert await sent((BEGIN, fails), (END, done)) is None
    assert [await sent((disk, answer)) for answer in (done, part, fails)] == [3, 3, None]


async def test_log_probs_are_those_of_all_tokens_but_the_first_after_the_end_of_a_pause() -> None:
    async with answering() as (control, front):
        await front.resume_generation()  # the first one is always sent
        await front.pause_generation()
        control.answers["/workers/e1/generate"] = (200, {"meta_info": META})
        for _ in range(2):
            assert await front.log_probs("e1", [5, 6, 7]) == {"log_probs": [-0.5, -1.5]}
        await front.resume_generation()
        assert [line.split()[1] for line in control.seen] == [
            "/continue_generation",
            "/pause_generation",
            "/continue_generation",
            "/workers/e1/generate",
            "/workers/e1/generate",
        ]


async def test_an_engine_that_is_gone_is_not_one_that_refuses() -> None:
    async with answering() as (control, front):
        for status, gone in ((502, True), (404, True), (400, False), (500, False)):
            control.answers["/workers/e1/generate"] = (status, {"error": {"message": "why"}})
            answer = await front.log_probs("e1", [5, 6])
            assert answer == {"message": f"HTTP {status}: why", "gone": gone}


async def test_a_call_after_the_end_of_the_server_counts_it() -> None:
    async with answering() as (_, front):
        with pytest.raises(ServerError, match=r"^it has ended$"):
            await front.until_up("it has ended")  # this front does not wait
        assert (await front.update("/begin_weight_update", {}))["ends"] == 1


async def test_a_lost_server_is_an_answer() -> None:
    server = Server("http://127.0.0.1:9", token=None, admin_token=None, timeout_s=5.0)
    front = Front(server, executor=None)
    for answer in (
        await front.update("/begin_weight_update", {}),
        await front.log_probs("e0", [5, 6]),
    ):
        assert answer["lost"] and "http://127.0.0.1:9 does not answer" in answer["message"]
    await server.close()
