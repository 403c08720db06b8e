"""Requests that no honest client sends, and a fake engine that refuses what it cannot read."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import psutil
from aiohttp import web
from typing_extensions import override

from tests.fake_sglang import FakeSGLang
from tests.server.helpers import Served, whole
from tests.support.waiting import until

PROMPT = [5, 6, 7]
DEEP = 10**5
HONEST = 8  # connections that honest callers keep alive


class CarefulFake(FakeSGLang):
    """Answers 400 to a body that the fake cannot read, as SGLang does."""

    @override
    def app(self) -> web.Application:
        app = super().app()
        app.router.add_route("*", "/{unknown:.*}", self.refuse)
        return app

    async def refuse(self, http: web.Request) -> web.Response:
        """Answers a call that the fake does not know."""
        return web.json_response({"error": {"message": f"unknown: {http.path}"}}, status=400)

    @override
    async def generate(self, http: web.Request) -> web.StreamResponse:
        try:
            _require_readable(json.loads(await http.read())["sampling_params"])
            return await super().generate(http)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return web.json_response({"error": {"message": repr(error)}}, status=400)


def _require_readable(params: dict[str, Any]) -> None:
    """Raises ValueError for some parameters that SGLang refuses."""
    counts = {"max_new_tokens": 0, "n": 1}
    if any(not isinstance(params.get(name, 1), int) for name in counts):
        raise ValueError("not a number")
    if any(params.get(name, 1) < least for name, least in counts.items()):
        raise ValueError("too small")
    if not isinstance(params.get("stop", ""), str) and len(params["stop"]) > 32:
        raise ValueError("at most 32 stop strings")


def _generate(**fields: Any) -> bytes:
    return json.dumps({"input_ids": PROMPT, **fields}).encode()


def _params(**params: Any) -> bytes:
    return _generate(sampling_params={"max_new_tokens": 4, **params})


# By name: a body that no engine takes; the server must refuse it.
REFUSED: dict[str, bytes] = {
    "empty": b" ",
    "no JSON": b"hello",
    "a list": b"[1, 2]",
    "truncated": _generate()[:-1],
    "trailing": _generate() + b"}",
    "a null byte": _generate() + b"\0",
    "depth": b'{"text":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "depth of objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "depth, not closed": b'{"text":' + b"[" * DEEP,
    "NaN": b'{"input_ids": [5], "sampling_params": {"temperature": NaN}}',
    "Infinity": b'{"input_ids": [5], "sampling_params": {"temperature": Infinity}}',
    "a lone surrogate": b'{"text": "\\ud800", "sampling_params": {}}',
    "not UTF-8": b'{"text": "\xff\xfe"}',
    "a byte order mark": b"\xef\xbb\xbf" + _generate(),
    "UTF-16": _generate().decode().encode("utf-16"),
    "a huge number": b'{"input_ids": [1' + b"0" * 5000 + b"]}",
    "a negative token": _generate(input_ids=[-1]),
    "a huge token": _generate(input_ids=[1 << 62]),
    "no token": _generate(input_ids=[]),
    "no tokens in a batch": _generate(input_ids=[[5], []]),
    "text of another type": b'{"text": {"a": 1}}',
    "tokens of another type": _generate(input_ids="abc"),
    "floats as tokens": _generate(input_ids=[1.5]),
    "nested tokens": _generate(input_ids=[[[5]]]),
    "parameters of another type": _generate(sampling_params=[[1]]),
    "max_new_tokens negative": _params(max_new_tokens=-1),
    "max_new_tokens a float": _params(max_new_tokens=1.5),
    "n negative": _params(n=-1),
    "n giant": _params(n=1 << 40),
    "a giant batch": _generate(input_ids=[[5]] * 100_000),
    "10^6 stop strings": _params(stop=["x"] * 10**6),
    "top_k above 2^31": _params(top_k=1 << 31),
}

# By name: headers and body that are refused before the body is looked at.
UNREADABLE: dict[str, tuple[dict[str, str], bytes, int]] = {
    "no content type": ({"Content-Type": ""}, _generate(), 400),
    "a form": ({"Content-Type": "application/x-www-form-urlencoded"}, _generate(), 400),
    "text/plain": ({"Content-Type": "text/plain"}, _generate(), 400),
    "not gzip": ({"Content-Encoding": "gzip"}, _generate(), 400),
    "a gzip bomb": ({"Content-Encoding": "gzip"}, gzip.compress(b" " * (1 << 28)), 413),
    "another site": ({"Origin": "http://evil.example"}, _generate(), 403),
    "another site's frame": ({"Sec-Fetch-Site": "cross-site"}, _generate(), 403),
    "a host of other bytes": ({"Host": "\udcff"}, _generate(), 400),
    "a host of two ports": ({"Host": "a:1:2"}, _generate(), 400),
    "a host of no port": ({"Host": "localhost:99999999"}, _generate(), 400),
    "an origin of other bytes": ({"Origin": "\udcff"}, _generate(), 400),
    "another name": ({"Host": "evil.example"}, _generate(), 403),
    "too large": ({"Content-Length": "200000000"}, b"", 413),
}


@contextlib.asynccontextmanager
async def leaving_nothing(it: Served, *fakes: FakeSGLang) -> AsyncIterator[None]:
    """Checks that after the block no request, connection or task is left of it."""
    tasks = _tasks()
    yield
    await until(lambda: it.service.generation.in_progress == 0)
    await until(lambda: all(fake.running == 0 for fake in fakes))
    await until(lambda: _connections(it) <= HONEST)
    await until(lambda: _tasks() <= tasks + HONEST)


def _connections(it: Served) -> int:
    """Returns the number of open connections to the server."""
    port = urlsplit(it.url).port
    ours = (each for each in psutil.Process().net_connections() if each.status != "LISTEN")
    return sum(each.laddr.port == port for each in ours)


def _tasks() -> int:
    """Returns the number of tasks, without those of connections, also to the fake engines."""
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return sum(name != "RequestHandler.start" for name in names)


@contextlib.asynccontextmanager
async def other_callers(it: Served, fake: FakeSGLang, count: int = 4) -> AsyncIterator[None]:
    """Generates in the background; each response must be the right one, also after the block."""
    stop = asyncio.Event()
    served = [0] * count

    async def call(number: int) -> None:
        while not stop.is_set() or not served[number]:
            seed = (served[number] * count + number + 50) << 7
            params = {"max_new_tokens": 20, "sampling_seed": seed}
            reply = await it.generate(input_ids=[number + 1, 2], sampling_params=params)
            assert reply["output_ids"] == whole(seed, 2, fake, 20)
            served[number] += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(call(number))
        try:
            yield
        finally:
            stop.set()
