"""A driver of fake servers, without a rollout around it."""

import contextlib
from array import array
from collections.abc import AsyncIterator, Sequence
from typing import Any

from typing_extensions import override

from seer_sgl.config import SchedulingConfig
from seer_sgl.driver.driver import Driver
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.driver.observer import Observer
from seer_sgl.driver.settings import Settings
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.describe import describe
from seer_sgl.engine.session import open_session
from seer_sgl.engine_types import EngineInfo
from seer_sgl.link.server import LinkServer
from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import (
    Chunk,
    ChunkResult,
    Failure,
    Group,
    Prompt,
    Request,
    Sample,
    Sampling,
    token_array,
)
from tests.fake_sglang import FakeSGLang, response_of, serving_all

CHUNK = 8
LIMIT = 60


class Stage:
    """Fake servers and a driver of the first `joined` of them."""

    def __init__(self, driver: Driver, engines: list[HttpEngine]) -> None:
        self.driver = driver
        self.engines = engines

    def groups(self, count: int, n: int = 4, run_id: str = "run", **options: Any) -> list[Group]:
        maker = GroupMaker(run_id, 1)
        sampling = Sampling(**{"max_new_tokens": LIMIT, **options})
        return [
            maker.group(
                Prompt(prompt_id=f"p{i}", prompt_ids=token_array([5] * (3 + i)), n=n),
                sampling,
                LIMIT,
                0.0,
            )
            for i in range(count)
        ]


class FakeFleet:
    def __init__(self, engines: Sequence[Any]) -> None:
        self.engines = engines
        self.link = LinkServer()
        self.drafts = None


@contextlib.asynccontextmanager
async def staged(
    *fakes: FakeSGLang, joined: int | None = None, timing: Timing = DEFAULT, **settings: Any
) -> AsyncIterator[Stage]:
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        urls = await stack.enter_async_context(serving_all(fakes))
        engines = [
            HttpEngine(info, session, timing=timing)
            for number, url in enumerate(urls)
            for info in await describe(session, f"e{number}", url)
        ]
        driver = await stack.enter_async_context(
            Driver.over(
                FakeFleet(engines[:joined]),
                Settings(
                    scheduling=SchedulingConfig(chunk_tokens=CHUNK), timing=timing, **settings
                ),
            )
        )
        yield Stage(driver, engines)


class Events(Observer):
    """Records the events of a run in order."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.samples: list[Sample] = []
        self.failures: list[Failure | None] = []
        self.errors: list[Exception] = []
        self.streamed_ids: dict[str, array[int]] = {}

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self.kinds.append("sent")

    @override
    def grown(self, result: ChunkResult) -> None:
        assert result.reply is not None
        request = result.chunk.request
        tail = request.response_ids[request.generated - len(result.reply.ids) :]
        assert tail == result.reply.ids, "the request has already grown"
        self.kinds.append("grown")

    @override
    def lost(self, result: ChunkResult) -> None:
        assert result.error is not None
        self.errors.append(result.error)
        self.kinds.append("lost")

    @override
    def streamed(self, request: Request, ids: "array[int]", logprobs: "array[float]") -> None:
        assert len(ids) == len(logprobs) > 0
        self.streamed_ids.setdefault(request.uid, token_array()).extend(ids)

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        assert request.group.samples[-1] is sample
        self.samples.append(sample)
        self.kinds.append("finished")

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        self.failures.append(failure)
        self.kinds.append("closed")

    @override
    def joined(self, info: EngineInfo, now: float) -> None:
        self.kinds.append(f"joined {info.engine_id}")

    @override
    def left(self, engine_id: str, now: float) -> None:
        self.kinds.append(f"left {engine_id}")


def whole(sample: Sample, limit: int = LIMIT) -> list[int]:
    """Returns the response of an undivided call."""
    return response_of(sample.seed, len(sample.prompt_ids), 50)[:limit]


def check(groups: list[Group], n: int = 4, limit: int = LIMIT) -> None:
    for group in groups:
        assert group.failure is None
        assert sorted(sample.index for sample in group.samples) == list(range(n))
        for sample in group.samples:
            assert list(sample.response_ids) == whole(sample, limit)


async def all_of(run: AsyncIterator[Group]) -> list[Group]:
    return [group async for group in run]
