"""Responses whose group was given up because of a sibling: each goes on in a group of its own."""

import asyncio
from typing import Any

from seer_sgl.types import Failure, Group
from tests.fake_sglang import FakeSGLang
from tests.link.test_link import until
from tests.server.helpers import Served, served, whole
from tests.server.test_generate import LIMIT, PROMPT, body

BAD = 13
SEED = 300 << 7


class Refuses(FakeSGLang):
    """Refuses the requests with the seed BAD."""

    def fault_of(self, call: dict[str, Any]) -> str:
        return "400" if call["sampling_params"]["sampling_seed"] == BAD else ""


async def give_up_group(it: Served) -> None:
    """Sends the request because of which the group `g` is given up."""
    assert (await it.post("/generate", **body(BAD, group_id="g")))[0] == 400


async def test_the_weight_versions_of_earlier_tokens_are_kept() -> None:
    fake = Refuses(longest=1000, delay_s=0.05)
    async with served(fake) as it:
        call = asyncio.create_task(it.generate(**body(SEED, group_id="g")))
        await until(lambda: fake.steps == 2)
        fake.weight_version = "v2"
        await until(lambda: it.service.driver.engines[0].weight_version == "v2")
        await give_up_group(it)
        reply = await call
    assert reply["output_ids"] == whole(SEED, len(PROMPT), fake, LIMIT)
    first, second = reply["meta_info"]["weight_versions"]
    assert (first["version"], first["start"]) == ("v1", 0)
    assert (second["version"], second["start"], second["end"]) == ("v2", first["end"], LIMIT)


async def test_an_abort_that_comes_before_the_new_request_ends_the_response() -> None:
    fake = Refuses(longest=1000, delay_s=0.05)
    async with served(fake) as it:
        generation = it.service.generation
        closed = generation.closed

        def closed_and_aborted(group: Group, failure: Failure | None) -> None:
            closed(group, failure)
            if len(group.requests) == 2:
                generation.abort("given up")

        generation.closed = closed_and_aborted  # type: ignore[method-assign]
        call = asyncio.create_task(it.generate(**body(SEED, group_id="g", rid="given up")))
        await until(lambda: fake.steps == 1)
        await give_up_group(it)
        reply = await call
        assert generation.in_progress == 0
    assert reply["meta_info"]["finish_reason"]["type"] == "abort"
    ids = reply["output_ids"]
    assert len(ids) < LIMIT and ids == whole(SEED, len(PROMPT), fake, LIMIT)[: len(ids)]


async def test_a_session_whose_turn_failed_ends_after_its_timeout() -> None:
    async with served(Refuses(), server={"session_timeout_s": 0.01}) as it:
        assert (await it.post("/generate", **body(BAD, session_id="s")))[0] == 400
        await until(lambda: it.service.generation.sessions == 0)
