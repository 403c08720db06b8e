"""A rollout over HTTP on fake servers that fail in many ways, and the checks of its result.

Real sockets, the real client and driver. The servers' faults are drawn from a seed; their times
depend on the machine.
"""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import msgspec
from aiohttp import web
from typing_extensions import override

from seer_sgl import Rollout
from seer_sgl.engine.client import HttpEngine
from seer_sgl.timing import Timing
from tests.fake_sglang import VOCAB, FakeSGLang
from tests.garbage import GARBAGE
from tests.support import fleets

LONGEST = 60  # response tokens before the end token
LIMIT = 50
SIZE = 8  # samples of a prompt
STALL_TIMEOUT_S = 1.0
# Shares of all calls. Half of the stalls are longer than STALL_TIMEOUT_S, half are shorter.
SHARES = {
    "reset": 0.01,
    "mid_body": 0.005,
    "garbage": 0.01,
    "repeat": 0.01,
    "429": 0.01,
    "503": 0.01,
    "stall all": 0.0005,
    "close": 0.05,
    "lost": 0.0005,
    "read": 0.0005,
}
# An endless reply takes seconds until it is too long.
SHAPES = sorted(GARBAGE.keys() - {"endless"})


@dataclass(eq=False)
class StormyFake(FakeSGLang):
    """A fake server with seeded faults. `counts`: the faults that happened, by kind."""

    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(f"fake {self.seed}")
        self._shape = itertools.cycle(SHAPES)
        self._moving = asyncio.Event()
        self._moving.set()
        self._last_body: bytes | None = None

    @override
    def fault_of(self, call: dict[str, Any]) -> str:
        self.seen.clear()
        (fault,) = self._random.choices(
            ["ok", *SHARES], [1 - sum(SHARES.values()), *SHARES.values()]
        )
        return f"garbage {next(self._shape)}" if fault == "garbage" else fault

    @override
    async def _answer(
        self, http: web.Request, call: dict[str, Any], fault: str
    ) -> web.StreamResponse:
        await self._moving.wait()
        if fault == "repeat" and self._last_body is None:
            fault = "ok"
        if fault != "ok":
            self.counts[fault.partition(" ")[0]] += 1
        if fault == "repeat":
            return web.Response(body=self._last_body, content_type="application/json")
        if fault == "stall all":
            self._stall(self._random.choice([0.3, 3.0]) * STALL_TIMEOUT_S)
        answer = await super()._answer(http, call, fault)
        if fault == "ok" and isinstance(answer, web.Response) and isinstance(answer.body, bytes):
            self._last_body = answer.body
        if fault == "close" and http.transport is not None:
            # The client may send its next call on this connection meanwhile.
            close_s = self._random.uniform(0.0, 0.02)
            asyncio.get_running_loop().call_later(close_s, http.transport.close)
        return answer

    def _stall(self, seconds: float) -> None:
        self._moving.clear()
        asyncio.get_running_loop().call_later(seconds, self._moving.set)


class Storm(msgspec.Struct, frozen=True):
    """The result: the faults that happened, by kind, and the rollout's report."""

    counts: Counter[str]
    report: dict[str, Any]


async def weather(requests: int, servers: int, seed: int) -> Storm:
    """Rolls the requests out on servers that fail.

    Raises AssertionError if a sample is missing, twice or not that of a server without faults.
    """
    prompts = [
        {"prompt_ids": [1 + number % 900] * (1 + number % 7), "id": f"p{number}"}
        for number in range(-(-requests // SIZE))
    ]
    counts: Counter[str] = Counter()
    async with rolling(servers, seed, counts) as rollout:
        seen: Counter[tuple[str, int]] = Counter()
        async for group in rollout.run(prompts):
            for sample in group.samples:
                fleets.check_sample(sample, LONGEST, LIMIT)
                seen[sample.group_id, sample.index] += 1
        assert seen == Counter((p["id"], i) for p in prompts for i in range(SIZE))
        assert rollout.driver.check() == []
        return Storm(counts, rollout.report())


TIMING = Timing(poll_s=0.05, readmission_most_s=0.2, kv_least_s=0.5, kv_first_pause_s=0.5)


@contextlib.asynccontextmanager
async def rolling(servers: int, seed: int, counts: Counter[str]) -> AsyncIterator[Rollout]:
    """Opens a rollout on fresh servers."""
    fakes = [
        StormyFake(
            longest=LONGEST,
            max_running_requests=64,
            delay_s=0.002,
            plugin={"version": "1", "missing": []},
            seed=seed * 1000 + number,
            counts=counts,
        )
        for number in range(servers)
    ]
    vocab_size = property(lambda _: VOCAB, lambda *_: None)
    opening = fleets.rolling(
        *fakes,
        timing=TIMING,
        engines={"stall_timeout_s": STALL_TIMEOUT_S, "recovery_timeout_s": 300.0},
        rollout={"n_samples_per_prompt": SIZE, "seed": seed},
        sampling={"max_response_len": LIMIT},
    )
    with patch.object(HttpEngine, "vocab_size", vocab_size):
        async with opening as rollout:
            yield rollout
