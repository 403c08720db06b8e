"""Passthrough requests: aborts of queued ones and of batches."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from aiohttp import web
from typing_extensions import override

from seer_sgl.server.passthrough.body import passthrough_body
from seer_sgl.server.prompt_texts import PromptTexts
from seer_sgl.timing import Timing
from tests.fake_sglang import FakeSGLang
from tests.server.helpers import Fakes, Served, served
from tests.support.bodies import body, events
from tests.support.infos import info
from tests.support.waiting import until


@dataclass(eq=False)
class Counting(FakeSGLang):
    """Records the whole body of each abort, and ends what it runs.

    `reading`: so many aborts come while it still reads the request.
    """

    reading: int = 0

    @override
    async def generate(self, http: web.Request) -> web.StreamResponse:
        self.seen.append(await http.json())
        await self.stalled.wait()
        return web.json_response({})

    @override
    async def abort_request(self, http: web.Request) -> web.Response:
        if not self.reading:
            self.stalled.set()
        self.reading = max(0, self.reading - 1)
        self.calls.append(("/abort_request", await http.json()))
        return web.json_response({})


def undivided(number: int, **more: Any) -> dict[str, Any]:
    """Returns a request for which the ledger of a small engine has room only alone."""
    params = {"max_new_tokens": 60, **more.pop("params", {})}
    return body(number << 7, top_logprobs_num=1, params=params, **more)


async def test_an_abort_ends_requests_that_wait_for_an_engine() -> None:
    fake = FakeSGLang(longest=1000, max_total_num_tokens=100, delay_s=600.0)
    async with served(fake) as it:
        first = asyncio.create_task(it.generate(**undivided(300, rid="first")))
        await until(lambda: len(fake.seen) == 1)
        waiting = [
            asyncio.create_task(it.generate(**undivided(301, rid="a1", return_logprob=True))),
            asyncio.create_task(it.generate(**undivided(302, rid="a2", params={"n": 2}))),
            asyncio.create_task(events(it, **undivided(303, rid="a3"))),
            asyncio.create_task(it.post("/v1/embeddings", input="x")),
        ]
        await until(lambda: it.service.generation.in_progress == 5)
        await it.post("/abort_request", rid="a1")
        one = await waiting[0]
        assert not first.done()
        await it.post("/abort_request", abort_all=True)
        two, streamed, (status, refusal) = await asyncio.gather(*waiting[1:])
        await first
        assert it.service.generation.in_progress == 0
        assert len(fake.seen) == 1
    assert (one["text"], one["output_ids"], one["meta_info"]["id"]) == ("", [], "a1")
    assert one["meta_info"]["output_token_logprobs"] == []
    for reply in (one, *two, *streamed):
        assert reply["meta_info"]["finish_reason"]["type"] == "abort"
        assert reply["meta_info"]["completion_tokens"] == 0
    assert len(two) == 2 and len(streamed) == 1
    assert status == 400 and "aborted" in refusal["message"]


@pytest.mark.parametrize(
    ("more", "sent"),
    [
        ({}, [{"rid": "b"}]),
        ({"input_ids": [[1], [2]]}, [{"rid": "b_0"}, {"rid": "b_1"}]),
        ({"input_ids": [[1], [2]], "rid": ["x", "y"]}, [{"rid": "x"}, {"rid": "y"}]),
        ({"params": {"n": 2}}, [{"abort_all": True}]),  # SGLang gives the samples other names
    ],
)
async def test_abort_all_reaches_every_response_by_the_name_that_sglang_gives_it(
    more: dict[str, Any], sent: list[dict[str, Any]]
) -> None:
    fake = Counting()
    async with served(fake) as it:
        fields = undivided(300, params=more.pop("params", {}), rid="b") | more
        call = asyncio.create_task(it.post("/generate", **fields))
        await until(lambda: len(fake.seen) == 1)
        await it.post("/abort_request", abort_all=True)
        await call
    aborts = [fields for path, fields in fake.calls if path == "/abort_request"]
    assert sorted(aborts, key=str) == sent


async def test_more_responses_than_allowed_are_refused(it: Served, fakes: Fakes) -> None:
    for path, fields in (
        ("/generate", body(1, params={"n": 4097})),
        ("/generate", undivided(1, params={"n": 10**9})),
        ("/generate", undivided(1) | {"input_ids": [[1]] * 4097}),
        ("/v1/completions", {"prompt": ["a"] * 50, "n": 100, "logprobs": 2}),
    ):
        status, refusal = await it.post(path, **fields)
        assert status == 400 and "at most 4096" in refusal["error"]["message"]
    assert not any(fake.seen for fake in fakes)


async def test_an_abort_is_repeated_until_the_engine_ends_the_request() -> None:
    fake = Counting(reading=2)
    async with served(fake, timing=Timing(abort_again_s=0.05)) as it:
        call = asyncio.create_task(it.post("/generate", **undivided(300, rid="a")))
        await until(lambda: len(fake.seen) == 1)
        await it.post("/abort_request", rid="a")
        assert (await call)[0] == 200
    assert fake.paths() == ["/abort_request"] * 3


async def test_an_abort_succeeds_although_the_client_of_its_request_hangs_up() -> None:
    fake = Counting(reading=1)
    async with served(fake, timing=Timing(abort_again_s=600.0)) as it:
        call = asyncio.create_task(it.post("/generate", **undivided(300, rid="a")))
        await until(lambda: len(fake.seen) == 1)
        abort = asyncio.create_task(it.post("/abort_request", rid="a"))
        await until(lambda: fake.paths() == ["/abort_request"])
        call.cancel()
        status, answer = await abort
        fake.stalled.set()
    assert (status, answer["aborted"]) == (200, 1)


async def test_a_divided_request_has_no_stop_outside_the_vocabulary(
    it: Served, fakes: Fakes
) -> None:
    for each in it.service.fleet.engines:
        each._info = msgspec.structs.replace(each.info, vocab_size=100)
    params = {"stop_token_ids": [100]}
    status, reply = await it.post("/generate", input_ids=[5], sampling_params=params)
    assert (status, reply["error"]["message"][:15]) == (400, "stop_token_ids:")
    assert not any(fake.seen for fake in fakes)


async def test_other_fields_that_have_no_value_are_not_sent_on(it: Served, fakes: Fakes) -> None:
    params = {"sampling_seed": 5, "max_new_tokens": 2, "n": None}
    empty: dict[str, Any] = {"lora_id": [], "a_field_of_tomorrow": False, "received_time": 5.5}
    await it.generate(input_ids=[5], sampling_params=params, top_logprobs_num=1, **empty)
    (sent,) = fakes[0].seen + fakes[1].seen
    assert not set(empty) & set(sent)
    assert "n" not in sent["sampling_params"], "SGLang fails with null"


def test_no_client_names_the_kv_of_its_images() -> None:
    given = {"input_ids": [5], "image_data": ["data:,"], "mm_hashes": ["ff"]}
    sent = passthrough_body(json.dumps(given).encode(), [info("e0")], PromptTexts(None, 1000)).body
    assert json.loads(sent).keys() & given.keys() == {"input_ids", "image_data"}


def test_a_number_that_names_a_session_is_sent_on_as_a_text() -> None:
    body = json.dumps({"input_ids": [5], "session_id": 7}).encode()
    sent = passthrough_body(body, [info("e0")], PromptTexts(None, 1000)).body
    assert json.loads(sent)["session_id"] == "7"


@pytest.mark.parametrize(
    ("session", "sent_on"),
    [
        ({"id": "s", "replace": True}, {"id": "s", "drop_previous_output": True}),
        ({"id": "s", "rid": None, "replace": True}, {"id": "s", "drop_previous_output": True}),
        ({"id": "s", "rid": None, "replace": False}, None),
        ({"id": "s", "rid": "a", "replace": True}, None),
    ],
)
def test_a_turn_that_begins_its_session_anew_makes_sglang_forget_nothing(
    session: dict[str, Any], sent_on: dict[str, Any] | None
) -> None:
    body = json.dumps({"input_ids": [5], "session_params": session}).encode()
    sent = passthrough_body(body, [info("e0")], PromptTexts(None, 1000)).body
    assert json.loads(sent)["session_params"] == (sent_on or session)


def test_the_rows_of_an_embedded_prompt_are_its_tokens() -> None:
    prompt, texts = [[0.5]] * 5000, PromptTexts(None, 10_000)
    for embeds, lengths in ((prompt, (5000,)), ([prompt, prompt[:3]], (5000, 3))):
        body = json.dumps({"input_embeds": embeds}).encode()
        assert passthrough_body(body, [info("e0")], texts).prompts == lengths
