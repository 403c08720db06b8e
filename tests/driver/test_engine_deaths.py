"""Engines that die while they have chunks: a request that kills is given up, and no other one."""

import asyncio
from collections import deque
from itertools import chain
from typing import Any

import pytest
from aiohttp import web

from seer_sgl.engine_types import EngineLoad
from seer_sgl.rollout.rollout import Rollout
from seer_sgl.scheduling.suspects import MORE_STALLS
from seer_sgl.types import Sample
from tests.fake_sglang import DYING_TURNS, FakeSGLang, response_of
from tests.support.fleets import all_groups, check, check_sample, rolling
from tests.support.timing import QUICK
from tests.support.waiting import until

POISON = [6, 6, 6]
POISONED = {"prompt_ids": POISON, "id": "poison"}
MANY = [*({"prompt_ids": [5] * (2 + i % 9), "id": f"p{i}"} for i in range(63))]


class Mortal(FakeSGLang):
    """Dies of one prompt, once its response has `deadly_from` tokens."""

    deadly_from = 0

    def fault_of(self, call: dict[str, Any]) -> str:
        ids, budget = call["input_ids"], call["sampling_params"]["max_new_tokens"]
        deadly = ids[:3] == POISON and len(ids) - 3 + budget > self.deadly_from
        return "die" if deadly else ""


async def poisoned_sample(rollout: Rollout, prompts: list[dict[str, Any]]) -> Sample:
    """Returns the sample of POISONED; those of the other prompts must be whole."""
    groups = [group async for group in rollout.run(prompts)]
    assert len(groups) == len(prompts)
    samples = {group.group_id: group.samples for group in groups}
    (poisoned,) = samples.pop("poison")
    for sample in chain(*samples.values()):
        check_sample(sample, longest=200)
    return poisoned


@pytest.mark.parametrize("place", [0, 31, 63])
async def test_three_engines_at_most_die_of_a_request_and_all_others_are_whole(place: int) -> None:
    prompts = [*MANY[:place], POISONED, *MANY[place:]]
    fakes = [Mortal(delay_s=0.01, longest=200) for _ in range(4)]
    settings = {"n_samples_per_prompt": 1, "on_failure": "sample"}
    async with rolling(*fakes, rollout=settings, timing=QUICK) as rollout:
        sample = await poisoned_sample(rollout, prompts)
        report = rollout.report()
    died = sum(fake.dead.is_set() for fake in fakes)
    assert died in (2, 3), "the third one if another request was on the second one"
    assert sample.finish_reason == "abort"
    message = f"{died} engines died while they ran it; the last one: "
    assert str(sample.failure).startswith(message)
    assert (report["failed_requests"], report["samples"], report["groups"]) == (1, 63, 64)
    assert report["retries"] == report["lost_chunks"] - 1 > 0


async def test_a_request_that_kills_late_comes_back_with_its_tokens_and_kills_three_at_most() -> (
    None
):
    """Chunks of 40 tokens are longer than the short first chunk of a suspect."""
    fakes = [Mortal(delay_s=0.01, longest=200) for _ in range(5)]
    for fake in fakes:
        fake.deadly_from = 49
    prompts = [*MANY[:20], POISONED]
    async with rolling(
        *fakes,
        rollout={"n_samples_per_prompt": 1, "on_failure": "sample", "seed": 5},
        scheduling={"chunk_tokens": 40},
        timing=QUICK,
    ) as rollout:
        poison = await poisoned_sample(rollout, prompts)
    whole = response_of(poison.seed, 3, 200)
    assert len(whole) > 60, "the response is long enough to kill"
    assert sum(fake.dead.is_set() for fake in fakes) == 3
    assert poison.response_length == 48, "a whole chunk and a short one"
    assert list(poison.response_ids) == whole[: poison.response_length]
    assert poison.failure is not None


async def test_siblings_of_a_request_that_was_given_up_continue_if_they_should() -> None:
    unlucky: list[int] = []  # the seed of one request

    class Picky(FakeSGLang):
        """Refuses one request of a group after its first chunk."""

        def fault_of(self, call: dict[str, Any]) -> str:
            ids, seed = call["input_ids"], call["sampling_params"]["sampling_seed"]
            if len(ids) == 11 + 8 and ids[:11] == [5] * 11 and not unlucky:
                unlucky.append(seed)
            return "400" if seed in unlucky else ""

    async with rolling(
        Picky(longest=200), Picky(longest=200), rollout={"on_failure": "sample"}, timing=QUICK
    ) as rollout:
        groups = await all_groups(rollout)
        report = rollout.report()
    assert report["failed_requests"] == 1
    assert len(groups) == 4
    failed = [s for group in groups for s in group.samples if s.failure is not None]
    assert [sample.seed for sample in failed] == unlucky
    assert failed[0].response_length == 8
    assert report["samples"] == 15
    assert report["wasted_tokens"] == 0


async def test_engines_that_die_one_after_another_and_come_back_cost_no_sample() -> None:
    """The second one dies when no request is a suspect because of the first."""
    fakes = [FakeSGLang(delay_s=0.03, longest=200) for _ in range(3)]
    fakes[0].faults = deque(["ok"] * 3 + ["die"])

    async with rolling(*fakes, sampling={"max_response_len": 300}, timing=QUICK) as rollout:
        running = asyncio.create_task(all_groups(rollout))
        await fakes[0].dead.wait()
        await fakes[0].start()
        live = rollout.driver._scheduler._live
        await until(lambda: live and not any(each.engine_deaths for each in live.values()))
        fakes[1].faults.append("die")
        await fakes[1].dead.wait()
        await fakes[1].start()
        check(await running, longest=200, limit=300)
        report = rollout.report()
    assert [fake.starts for fake in fakes] == [2, 2, 1]
    assert report["failed_requests"] == 0
    assert report["lost_chunks"] >= 2
    assert report["respawns"] == 2


class Stalled(FakeSGLang):
    """Stands still while it has one prompt, as with a stop_regex that takes for ever."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.stalls = 0
        self._moving = asyncio.Event()
        self._moving.set()

    async def _answer(
        self, http: web.Request, call: dict[str, Any], fault: str
    ) -> web.StreamResponse:
        if call["input_ids"][:3] == POISON:
            self.stalls += 1
            self._moving.clear()
        await self._moving.wait()
        return await super()._answer(http, call, fault)

    async def abort_request(self, http: web.Request) -> web.Response:
        self._moving.set()
        return await super().abort_request(http)


async def test_a_request_that_stalls_engines_is_given_up_and_no_other_one() -> None:
    fakes = [Stalled(delay_s=0.01, longest=200) for _ in range(2)]
    prompts = [*MANY[:9], POISONED, *MANY[9:18]]
    settings = {"n_samples_per_prompt": 1, "on_failure": "sample"}
    async with rolling(
        *fakes, rollout=settings, engines={"stall_timeout_s": 0.1}, timing=QUICK
    ) as rollout:
        poison = await poisoned_sample(rollout, prompts)
    assert "died or stalled while they ran it" in str(poison.failure)
    needed = 2 + MORE_STALLS  # of rollout.max_engine_kills
    assert sum(fake.stalls for fake in fakes) >= needed


async def test_a_chunk_that_an_engine_never_received_is_not_the_cause_of_its_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeSGLang(delay_s=0.01, longest=60)
    async with rolling(fake, engines={"recovery_timeout_s": 20.0}, timing=QUICK) as rollout:
        (engine,) = rollout.fleet.engines
        load, polls = await engine.load(), list[None]()

        async def unchanged() -> EngineLoad:
            polls.append(None)
            return load

        with monkeypatch.context() as patch:  # polls do not notice the death before a chunk is sent
            patch.setattr(engine, "load", unchanged)
            await until(lambda: polls)
            fake.die()
            for _ in range(DYING_TURNS + 1):
                await asyncio.sleep(0)
            running = asyncio.create_task(all_groups(rollout))
            await until(lambda: rollout.recorder and rollout.report()["lost_chunks"])
        assert not fake.seen
        await fake.start()
        check(await running, longest=60)
        report = rollout.report()
    assert report["lost_chunks"] > 0
    assert report["failed_requests"] == 0
