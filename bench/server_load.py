"""The callers of the server benchmark: they check every answer, and some stream or hang up."""

import asyncio
import contextlib
import gc
import random
import time
from collections import Counter
from typing import Any

import aiohttp
import msgspec

from tests.fake_sglang import length_of, response_of

SIBLINGS = 8  # requests per prompt
LAST_EVENT = b"data: [DONE]"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the callers do. Times in seconds; `longest`: tokens of the longest response.

    Every `stream_every`th request streams; of every `hang_up_every`th the caller hangs up within
    `hang_up_s`. A caller waits for up to `think_s` between two requests.
    """

    callers: int
    seconds: float
    input_tokens: int
    longest: int
    think_s: float
    hang_up_s: float
    stream_every: int = 10
    hang_up_every: int = 50


class Result(msgspec.Struct):
    """The ends of the requests. `seconds`: from each request to the end of its answer.

    `streamed`: of the answered ones. `wrong`: answers that were not the request's own, or
    incomplete.
    """

    sent: int = 0
    answered: int = 0
    streamed: int = 0
    hung_up: int = 0
    wrong: int = 0
    errors: Counter[str] = msgspec.field(default_factory=Counter)
    seconds: list[float] = msgspec.field(default_factory=list)


class Callers:
    """`load.callers` clients of one URL."""

    def __init__(self, url: str, load: Load) -> None:
        self._url = url
        self._load = load
        self._random = random.Random(1)
        self.result = Result()

    async def run(self) -> Result:
        """Calls until the time is over and the last request is answered.

        Python searches the callers for no garbage meanwhile: its pauses would count as latency.
        """
        gc.collect()
        gc.disable()
        try:
            return await self._run()
        finally:
            gc.enable()

    async def _run(self) -> Result:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            until = time.perf_counter() + self._load.seconds
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._load.callers):
                    tasks.create_task(self._call_on(session, until))
        return self.result

    async def _call_on(self, session: aiohttp.ClientSession, until: float) -> None:
        while True:
            await asyncio.sleep(self._random.random() * self._load.think_s)
            if time.perf_counter() >= until:
                return
            self.result.sent += 1
            number = self.result.sent
            if number % self._load.hang_up_every == 0:
                await self._hang_up(session, number)
                continue
            try:
                await self._answered(session, number)
            except (aiohttp.ClientError, OSError, msgspec.DecodeError) as error:
                self.result.errors[type(error).__name__] += 1

    async def _hang_up(self, session: aiohttp.ClientSession, number: int) -> None:
        self.result.hung_up += 1
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(self._random.random() * self._load.hang_up_s):
                async with session.post(self._url, json=self._body(number)) as reply:
                    await reply.read()

    async def _answered(self, session: aiohttp.ClientSession, number: int) -> None:
        body = self._body(number)
        started = time.perf_counter()
        async with session.post(self._url, json=body) as reply:
            answer = await reply.read()
        if reply.status != 200:
            self.result.errors[str(reply.status)] += 1
            return
        if body["stream"]:
            self.result.streamed += 1
            *_, last, done, _ = [b"", b"", *answer.split(b"\n\n")]
            answer = last.removeprefix(b"data: ") if done == LAST_EVENT else b"{}"
        self.result.seconds.append(time.perf_counter() - started)
        self.result.answered += 1
        if not self._is_right(msgspec.json.decode(answer), body):
            self.result.wrong += 1

    def _body(self, number: int) -> dict[str, Any]:
        group = number // SIBLINGS
        ids = [(group * 7919 + k) % 900 for k in range(self._load.input_tokens)]
        params = {"max_new_tokens": self._load.longest, "sampling_seed": _seed(number)}
        return {
            "rid": f"load-{number}",
            "input_ids": ids,
            "sampling_params": params,
            "stream": number % self._load.stream_every == 0,
            "return_logprob": True,
        }

    def _is_right(self, reply: dict[str, Any], body: dict[str, Any]) -> bool:
        meta = reply.get("meta_info", {})
        seed = body["sampling_params"]["sampling_seed"]
        tokens = [token for _, token, _ in meta.get("output_token_logprobs", ())]
        return bool(
            meta.get("id") == body["rid"]
            and tokens == response_of(seed, len(body["input_ids"]), self._load.longest)
            and len(tokens) == length_of(seed, self._load.longest)
        )


def _seed(number: int) -> int:
    """Returns a seed of its own for each request, whose lengths are spread evenly."""
    return (number << 7) | 1
