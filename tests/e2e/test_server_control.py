"""Pauses, aborts and memory through the rollout server under load, on real engines."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.e2e.held_out import prompts
from tests.e2e.served import LIMIT, body, serving
from tests.e2e.undivided import undivided
from tests.server.helpers import Served
from tests.support.waiting import until

pytestmark = [pytest.mark.shared_engines, pytest.mark.long]


def requests() -> list[dict[str, Any]]:
    return [body(ids, n) for n, ids in enumerate(prompts(4) * 3)]


async def begun(it: Served, bodies: Sequence[dict[str, Any]]) -> list["asyncio.Task[Any]"]:
    """Begins requests; waits until twelve chunks have come back."""
    answers = it.service.generation._answers
    tasks = [asyncio.create_task(it.generate(**each)) for each in bodies]
    await until(lambda: sum(each.totals.chunks for each in answers.values()) >= 12)
    return tasks


def ended(tasks: Sequence["asyncio.Task[Any]"]) -> int:
    return sum(task.done() for task in tasks)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_pause_changes_no_token(engine_urls: list[str], mode: str) -> None:
    expected = await undivided(engine_urls[0], requests())
    # A grammar cannot cross a chunk boundary: it is forwarded, and the engine itself pauses it.
    forwarded = body(prompts(1)[0], 5)
    forwarded["sampling_params"] |= {"regex": "[0-9+]{300,400}", "ignore_eos": False}
    (alone,) = await undivided(engine_urls[0], [forwarded])
    async with serving(engine_urls, LIMIT) as it:
        tasks = await begun(it, [*requests(), forwarded])
        for _ in range(2):
            assert (await it.post("/pause_generation", mode=mode))[0] == 200
            await until(lambda: ended(tasks) + it.service.generation.in_progress == len(tasks))
            done = ended(tasks)
            await asyncio.sleep(1.5)
            assert ended(tasks) == done
            async with it.session.get(f"{it.url}/health_generate") as health:
                assert health.status == 200
            assert (await it.post("/continue_generation"))[0] == 200
        replies = await asyncio.gather(*tasks)
    assert [reply["output_ids"] for reply in replies] == [*expected, alone]


@pytest.mark.parametrize("how", ["abort_request", "pause_generation"])
async def test_all_requests_end_with_a_part_of_the_expected_tokens(
    engine_urls: list[str], how: str
) -> None:
    expected = await undivided(engine_urls[0], requests())
    async with serving(engine_urls, LIMIT) as it:
        tasks = await begun(it, requests())
        fields = {"abort_all": True} if how == "abort_request" else {"mode": "abort"}
        assert (await it.post(f"/{how}", **fields))[0] == 200
        replies = await asyncio.gather(*tasks)
        for reply, whole in zip(replies, expected, strict=True):
            ids = reply["output_ids"]
            assert reply["meta_info"]["finish_reason"]["type"] == "abort"
            assert ids == whole[: len(ids)] and len(ids) < LIMIT
        assert sum(len(reply["output_ids"]) for reply in replies) > 0
        assert (await it.post("/continue_generation"))[0] == 200
        assert (await it.post("/flush_cache"))[0] == 200, "nothing runs on any engine"
        assert len((await it.generate(**requests()[0]))["output_ids"]) == LIMIT


async def test_memory_is_released_and_resumed_any_number_of_times(engine_urls: list[str]) -> None:
    expected = await undivided(engine_urls[0], requests())
    async with serving(engine_urls, LIMIT) as it:
        tasks = await begun(it, requests())
        for tags in (["kv_cache"], ["kv_cache"], ["kv_cache", "weights"]):
            status, answer = await it.post("/release_memory_occupation", tags=tags)
            assert status == 200, answer
        for again in (["weights"], ["weights"], None, None):
            status, answer = await it.post("/resume_memory_occupation", tags=again)
            assert status == 200, answer
        replies = await asyncio.gather(*tasks)
    assert [reply["output_ids"] for reply in replies] == expected
