"""A rollout server on fake engines, with real sockets."""

import asyncio
import base64
import contextlib
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from seer_sgl.config import parse
from seer_sgl.rollout.rollout import Rollout
from seer_sgl.server.command import serving as listening
from seer_sgl.server.service import Service
from seer_sgl.timing import DEFAULT, Timing
from tests.fake_sglang import FakeSGLang, response_of, serving_all
from tests.support.waiting import until

CHUNK = 8
Fakes = list[FakeSGLang]


class BreakingOff(FakeSGLang):
    """Ends its answer to an undivided request half-way, as SGLang fails in a stream."""

    async def _stream(
        self, http: web.Request, reply: dict[str, Any], fault: str
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(http)
        await self.half(response)
        assert http.transport is not None
        http.transport.close()
        return response

    async def half(self, response: web.StreamResponse) -> None:
        """Sends what comes behind the header: nothing."""


class Served(NamedTuple):
    """A running server: its URL, its service, and a client session."""

    url: str
    service: Service
    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str) -> tuple[int, Any]:
        """Returns status and JSON reply of a request without a body."""
        async with self.session.request(method, f"{self.url}{path}") as reply:
            return reply.status, await reply.json(content_type=None)

    async def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        """Returns status and JSON reply of a POST."""
        async with self.session.post(f"{self.url}{path}", json=fields) as reply:
            return reply.status, await reply.json(content_type=None)

    async def ok(self, path: str, **fields: Any) -> Any:
        """Returns the JSON reply of a POST, which must succeed."""
        status, reply = await self.post(path, **fields)
        assert status == 200, reply
        return reply

    async def generate(self, **fields: Any) -> Any:
        """Returns the JSON reply of `/generate`, which must succeed."""
        return await self.ok("/generate", **fields)


@contextlib.asynccontextmanager
async def served(
    *fakes: FakeSGLang,
    server: dict[str, Any] | None = None,
    timing: Timing = DEFAULT,
    **sections: Any,
) -> AsyncIterator[Served]:
    """Serves a fleet of fakes. `server`: keys of that section."""
    async with serving_all(fakes) as urls:
        config = parse(
            {
                "engines": {"launch": "external", "urls": urls},
                "scheduling": {"chunk_tokens": CHUNK},
                "server": {"port": 0, **(server or {})},
                **sections,
            }
        )
        async with served_config(Rollout(config, gives_up=False, timing=timing)) as it:
            yield it


@contextlib.asynccontextmanager
async def served_config(rollout: Rollout) -> AsyncIterator[Served]:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(rollout)
        service = Service(rollout)
        url = await stack.enter_async_context(running(service))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Served(url, service, session)


@contextlib.asynccontextmanager
async def running(service: Service) -> AsyncIterator[str]:
    """Listens, and runs the service's own work; yields the URL."""
    async with listening(service) as url:
        work = asyncio.create_task(service.generation.run())
        try:
            yield url
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work


def whole(seed: int, prompt_len: int, fake: FakeSGLang, limit: int) -> list[int]:
    """Returns the tokens of an undivided call."""
    return response_of(seed, prompt_len, fake.longest)[:limit]


def two() -> Fakes:
    """Returns two engines on which a long response takes a while."""
    return [FakeSGLang(longest=10_000, delay_s=0.01) for _ in range(2)]


def tensor_entry(name: str) -> str:
    """Returns a pickle like that of a tensor, which the fakes do not read."""
    return base64.b64encode(pickle.dumps([(name, Counter())])).decode()


async def until_held(it: Served) -> None:
    """Waits until a request waits for the end of a hold."""
    over: Any = it.service.backend.holds._over
    await until(lambda: over._waiters)


async def under_way(
    update: Coroutine[Any, Any, Any], *fakes: FakeSGLang
) -> tuple["asyncio.Task[Any]", asyncio.Event]:
    """Returns an update that the engines have begun, and the event that lets them end it."""
    held = asyncio.Event()
    for fake in fakes:
        fake.held = held
    task = asyncio.create_task(update)
    await asyncio.gather(*(fake.updating.wait() for fake in fakes))
    return task, held
