"""Requests that kill engines, sent through the server beside others: only they are given up."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.fake_sglang import FakeSGLang
from tests.server.helpers import served, whole
from tests.support.timing import QUICK
from tests.support.waiting import until

pytestmark = pytest.mark.process

BYSTANDERS, POISONS = 8, 3
POISON = [6, 6, 6]
LENGTH = 60
LONGEST = 1000


class Mortal(FakeSGLang):
    """Dies of one prompt, however it comes."""

    def fault_of(self, call: dict[str, Any]) -> str:
        return "die" if call["input_ids"][:3] == POISON else ""


@contextlib.asynccontextmanager
async def reviving(fakes: Sequence[FakeSGLang]) -> AsyncIterator[None]:
    """Restarts fakes that have died."""

    async def revive(fake: FakeSGLang) -> None:
        while True:
            await fake.dead.wait()
            await asyncio.sleep(0.05)
            await fake.start()

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(revive(fake)) for fake in fakes]
        try:
            yield
        finally:
            for each in running:
                each.cancel()


@pytest.mark.parametrize("seed", range(10))
async def test_three_poisons_at_once_take_no_bystander_with_them(seed: int) -> None:
    draw = random.Random(seed)
    fakes = [Mortal(longest=LONGEST, delay_s=0.01) for _ in range(2)]
    undivided = [{}, {"top_logprobs_num": 1}]  # as the engine would get it from the client

    async with served(*fakes, server={"group_window_s": 0.0}, timing=QUICK) as it, reviving(fakes):

        async def ask(number: int, prompt: list[int], fields: dict[str, Any]) -> tuple[int, Any]:
            await asyncio.sleep(draw.random() * 0.2)
            params = {"max_new_tokens": LENGTH, "sampling_seed": (number + 100) << 7}
            return await it.post("/generate", input_ids=prompt, sampling_params=params, **fields)

        poisons = [ask(n, POISON, draw.choice(undivided)) for n in range(POISONS)]
        numbers = range(POISONS, POISONS + BYSTANDERS)
        bystanders = [ask(n, [5, n], draw.choice(undivided)) for n in numbers]
        answers = await asyncio.gather(*poisons, *bystanders)
        await until(lambda: not it.service.driver.check())
    for status, reply in answers[:POISONS]:
        assert status == 502
        assert "engines died while they ran it" in reply["error"]["message"]
    for number, (status, reply) in zip(numbers, answers[POISONS:], strict=True):
        assert status == 200, reply
        assert reply["output_ids"] == whole((number + 100) << 7, 2, fakes[0], LENGTH)
    assert sum(fake.starts - 1 for fake in fakes) <= 4 * POISONS
