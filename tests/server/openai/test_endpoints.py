"""Completions and chats on fake engines: what is divided, what goes through, what is refused."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seer_sgl.admission.sglang_crashes import crashing
from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.server.errors import BadRequest
from seer_sgl.server.generate_body import GenerateReader
from seer_sgl.server.openai import chats, completions
from seer_sgl.server.openai.bodies import ChatBody, CompletionBody, OpenAIBody, read_openai
from seer_sgl.server.passthrough import openai
from seer_sgl.server.service import THREAD_BYTES
from seer_sgl.types import token_array
from tests.fake_sglang import VOCAB
from tests.server.chat_fake import CHAT_PROMPT, ChatFake, model_folder, word_of
from tests.server.helpers import CHUNK, Served, served, until_held, whole
from tests.support.bodies import events
from tests.support.waiting import until

Json = dict[str, Any]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]
PROMPTS: dict[str, Json] = {COMPLETIONS: {"prompt": " w100"}, CHAT: {"messages": MESSAGES}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
LIMIT, SEED = 30, 77 << 7


@pytest.fixture
def fake() -> ChatFake:
    return ChatFake()


@pytest.fixture
async def it(fake: ChatFake, tmp_path: Path) -> AsyncIterator[Served]:
    async with served(fake, model={"path": model_folder(tmp_path)}) as served_fake:
        yield served_fake


def text_of(ids: list[int]) -> str:
    return "".join(word_of(token) for token in ids)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": " w100", "logprobs": 0, "return_token_ids": True}),
        (CHAT, {"messages": MESSAGES, "logprobs": True}),
    ],
)
async def test_a_stream_has_a_part_for_each_chunk(it: Served, path: str, fields: Json) -> None:
    parts = await events(it, path, **fields, max_tokens=LIMIT, seed=SEED)
    assert len(parts) > LIMIT / CHUNK
    assert parts[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("parser", [None, "qwen"])
async def test_the_end_token_has_a_chunk_of_its_own_where_engines_have_a_parser(
    it: Served, fake: ChatFake, parser: str | None
) -> None:
    fake.arguments |= {"tool_call_parser": parser}
    options = {"continuous_usage_stats": True}
    fields: Json = {"messages": MESSAGES, "logprobs": True, "seed": 0, "stream_options": options}
    first, *parts, last = await events(it, CHAT, **fields)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert last["choices"][0]["finish_reason"] == "stop"
    assert len(parts) == (parser is not None)
    for part in parts:
        (choice,) = part["choices"]
        assert choice["delta"] == {"reasoning_content": None}
        assert len(choice["logprobs"]["content"]) == part["usage"]["completion_tokens"] == 1


async def test_the_usage_comes_last_if_it_is_wanted(it: Served) -> None:
    parts = await events(
        it,
        CHAT,
        messages=MESSAGES,
        n=2,
        max_tokens=5,
        seed=SEED,
        stream_options={"include_usage": True},
    )
    assert parts[-1]["choices"] == []
    usage = parts[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(CHAT_PROMPT), 10)
    assert all("usage" not in part for part in parts[:-1])


async def test_an_engine_renders_a_chat_and_a_chat_without_limit_fills_the_context(
    it: Served, fake: ChatFake
) -> None:
    fake.longest = 40
    reply = await it.ok(CHAT, messages=MESSAGES, seed=39 << 7, stream=False, return_token_ids=True)
    rendered = [body for path, body in fake.received if path == "/v1/tokenize"]
    assert rendered[-1]["messages"] == MESSAGES and "stream" not in rendered[-1]
    (choice,) = reply["choices"]
    assert choice["prompt_token_ids"] == CHAT_PROMPT
    assert choice["response_token_ids"] == whole(39 << 7, len(CHAT_PROMPT), fake, 1000)
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        (CompletionBody, {"prompt": [5] * 41}, "prompt: 41 tokens; the longest prompt has 9"),
        (ChatBody, {"messages": MESSAGES, "input_ids": [5] * 41}, "input_ids: 41 tokens"),
        (CompletionBody, {"prompt": ["," * 41]}, None),
        (CompletionBody, {"prompt": [[5] * 21] * 2}, None),
    ],
)
def test_far_too_many_ids_are_refused_undecoded(
    kind: type[OpenAIBody], fields: Json, why: str | None
) -> None:
    refused = contextlib.nullcontext() if why is None else pytest.raises(BadRequest, match=why)
    with refused:
        read_openai(json.dumps(fields).encode(), kind, 10)


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/messages"])
async def test_a_long_body_that_passes_through_is_checked_in_a_thread(
    it: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return crashing(*given)

    monkeypatch.setattr(openai, "crashing", noted)
    await it.ok(path, prompt=" w100", logprobs=3, user="x" * THREAD_BYTES)
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_long_body_that_is_divided_is_read_in_threads(
    it: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noted(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*given: Any) -> Any:
            threads.append(threading.current_thread())
            return read(*given)

        return reading

    for module in (chats, completions):
        monkeypatch.setattr(module, "read_openai", noted(read_openai))
    monkeypatch.setattr(GenerateReader, "batch", noted(GenerateReader.batch))
    await it.ok(path, **PROMPTS[path], max_tokens=2, user="x" * THREAD_BYTES)
    assert len(threads) == 2
    assert threading.main_thread() not in threads
    assert it.service.passthrough.counts == {}


@pytest.mark.parametrize(
    ("given", "read"), [({}, [1, *CHAT_PROMPT]), ({"input_ids": [9, 8]}, [9, 8])]
)
async def test_a_model_of_images_reads_a_rendered_chat_as_text_and_ids_as_they_are(
    it: Served, fake: ChatFake, monkeypatch: pytest.MonkeyPatch, given: Json, read: list[int]
) -> None:
    fake.arguments["has_image_understanding"] = True
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda *text: token_array([1]) + encode(*text))
    ask: Json = {"messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
    (choice,) = (await it.ok(CHAT, **ask, **given))["choices"]
    assert choice["prompt_token_ids"] == read
    # Special tokens of some tokenizers have no text (mistral_common).
    monkeypatch.setattr(Tokenizer, "encode_part", lambda *_: token_array([5]))
    (choice,) = (await it.ok(CHAT, **ask, **given))["choices"]
    assert choice["prompt_token_ids"] == given.get("input_ids", CHAT_PROMPT)


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        (COMPLETIONS, {"logprobs": 3}, "logprobs"),
        (COMPLETIONS, {"model": "base:adapter"}, "lora_path"),
        (COMPLETIONS, {"repetition_penalty": 1.1}, "repetition_penalty"),
        (COMPLETIONS, {"new_field": 1}, "new_field"),
        (COMPLETIONS, {"prompt": [" w100", ""]}, "prompt"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"top_logprobs": 2, "logprobs": True}, "top_logprobs"),
        (CHAT, {"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        (CHAT, {"chat_template_kwargs": {"reasoning_effort": "low"}}, "reasoning_effort"),
        (CHAT, {"max_tokens": 10**8}, "length"),
    ],
)
async def test_what_cannot_cross_a_chunk_goes_through_whole(
    it: Served, fake: ChatFake, path: str, fields: Json, reason: str
) -> None:
    body = PROMPTS[path] | fields
    reply = await it.ok(path, **body)
    assert {name: reply["undivided"][name] for name in body} == body
    assert it.service.passthrough.counts == {reason: 1}
    assert not fake.seen


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (COMPLETIONS, {"prompt": " w100", "logprobs": VOCAB + 1, "top_logprobs": 0}, "logprobs"),
        (COMPLETIONS, {"prompt": " w100", "stop": ["x" * 9999], "stop_sequences": ["x"]}, "stop"),
        (CHAT, {"messages": MESSAGES, "input_ids": [VOCAB], "prompt": " w100"}, "input_ids"),
        (
            "/invocations",
            {"messages": MESSAGES, "rid": ["a", "b"], "prompt": ["a", "b"]},
            "rid",
        ),
        (
            CHAT,
            {"messages": MESSAGES, "chat_template_kwargs": {"spaces_between_special_tokens": [1]}},
            "spaces_between_special_tokens",
        ),
        ("/v1/responses", {"input": "x", "request_id": "HEALTH_CHECK_1"}, "request_id"),
        ("/v1/messages", {"stop_sequences": ["x" * 9999], "stop": "x"}, "stop_sequences"),
    ],
)
async def test_a_field_that_a_path_does_not_read_hides_none_that_it_reads(
    it: Served, fake: ChatFake, path: str, fields: Json, named: str
) -> None:
    for engine in it.service.fleet.engines:
        engine._info = msgspec.structs.replace(engine.info, vocab_size=VOCAB)
    async with it.session.post(it.url + path, json=fields) as reply:
        assert reply.status == 400
        assert (await reply.json())["message"].startswith(f"{named}: ")
    assert not any(asked == path for asked, _ in fake.received)


async def test_a_field_of_another_path_is_not_judged(it: Served) -> None:
    chat: Json = {"messages": MESSAGES, "prompt": [[]], "stop_sequences": [5]}
    assert (await it.ok(CHAT, **chat))["undivided"]["prompt"] == [[]]
    await it.ok(COMPLETIONS, prompt=" w100", input_ids=[-1], max_completion_tokens="x")


@pytest.mark.parametrize("more", [{}, {"new_field": 1}, {"logprobs": 2}])
@pytest.mark.parametrize("prompt", ["gcd", [" w100", "gcd"]])
async def test_a_completion_without_tokens_reaches_no_engine(
    it: Served, fake: ChatFake, prompt: str | list[str], more: Json
) -> None:
    status, reply = await it.post(COMPLETIONS, prompt=prompt, **more)
    assert (status, reply["message"]) == (400, "prompt: empty prompt")
    assert not any(path == COMPLETIONS for path, _ in fake.received)


@pytest.mark.parametrize(
    ("arguments", "asked", "reason"),
    [
        ({"chat_template": "llama-2"}, (CHAT, {}), "chat_template"),
        ({"model_type": "gpt_oss"}, (CHAT, {}), "model_type"),
        ({"reasoning_parser": "inkling"}, (CHAT, {}), "reasoning_parser"),
        ({"tool_call_parser": "glm47"}, (CHAT, {}), "tool_call_parser"),
        ({"tool_call_parser": "kimi_k2"}, (CHAT, {"tools": [TOOL]}), "tool_call_parser"),
        ({"tool_call_parser": "qwen"}, (CHAT, {"tools": [TOOL], "stream": True}), "tools"),
        ({"return_output_ids": True}, (CHAT, {}), "sglext"),
        ({"completion_template": "x"}, (COMPLETIONS, {}), "completion_template"),
    ],
)
async def test_engines_that_do_more_than_generate_get_requests_whole(
    it: Served, fake: ChatFake, arguments: Json, asked: tuple[str, Json], reason: str
) -> None:
    path, fields = asked
    fake.arguments |= arguments
    await it.ok(path, **(fields | PROMPTS[path]))
    assert it.service.passthrough.counts == {reason: 1}


async def test_sglang_receives_no_number_as_the_name_of_a_session(
    it: Served, fake: ChatFake
) -> None:
    chat: Json = {"messages": MESSAGES, "session_id": 7, "max_tokens": 1}
    await it.ok(CHAT, **chat)
    assert "session_id" not in fake.received[-1][1] and len(fake.seen) == 1
    reply = await it.ok(CHAT, **chat, presence_penalty=0.5)
    assert reply["undivided"]["session_id"] == "7"


async def test_what_an_engine_does_not_render_is_answered_by_an_engine(
    it: Served, fake: ChatFake
) -> None:
    fake.renders = False
    await it.ok(CHAT, messages=MESSAGES)
    assert it.service.passthrough.counts == {"messages": 1}


async def test_calls_of_functions_are_those_that_an_engine_finds(
    it: Served, fake: ChatFake
) -> None:
    fake.arguments["tool_call_parser"] = "qwen"
    call = {"tool_index": 0, "name": "f", "parameters": '{"a": 1}'}
    fake.parsed = {"normal_text": "well", "calls": [call]}
    fake.longest = 1
    reply = await it.ok(CHAT, messages=MESSAGES, tools=[TOOL])
    (choice,) = reply["choices"]
    (called,) = choice["message"]["tool_calls"]
    assert called["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert choice["message"]["content"] == "well"
    assert (choice["finish_reason"], choice["matched_stop"]) == ("tool_calls", None)
    asked = [body for path, body in fake.received if path == "/parse_function_call"]
    assert asked[0]["tool_call_parser"] == "qwen" and asked[0]["tools"] == [TOOL]
    fake.parsed = None  # the parser fails: the text stays unchanged
    reply = await it.ok(CHAT, messages=MESSAGES, tools=[TOOL])
    assert reply["choices"][0]["message"]["tool_calls"] is None


@pytest.mark.parametrize("opened", [True, False])
async def test_reasoning_is_what_an_engine_separates(
    it: Served, fake: ChatFake, opened: bool
) -> None:
    fake.arguments["reasoning_parser"] = "qwen3"
    fake.opens_reasoning = opened
    ask: Json = {"messages": MESSAGES, "max_tokens": 12, "seed": SEED}
    reply = await it.ok(CHAT, **ask, return_token_ids=True)
    (choice,) = reply["choices"]
    words = text_of(choice["response_token_ids"]).split()
    message = choice["message"]
    assert message["reasoning_content"] == (words[0] if opened else None)
    assert message["content"].split() == words[opened:]
    await it.ok(CHAT, **ask)
    probes = [body for path, body in fake.received if path == CHAT]
    assert len(probes) == 1  # for all chats with the same template variables
    reply = await it.ok(CHAT, **ask, separate_reasoning=False)
    assert reply["choices"][0]["message"]["content"].split() == words
    await it.ok(CHAT, **ask, stream=True)
    assert it.service.passthrough.counts == {"reasoning_parser": 1}


async def test_engines_are_not_asked_to_generate_while_generation_is_held(
    it: Served, fake: ChatFake
) -> None:
    fake.arguments["reasoning_parser"] = "qwen3"
    await it.post("/pause_generation", mode="retract")
    chat = asyncio.create_task(it.ok(CHAT, messages=MESSAGES, max_tokens=1))
    await until(lambda: "/separate_reasoning" in [path for path, _ in fake.received])
    await until_held(it)
    assert CHAT not in [path for path, _ in fake.received]
    await it.post("/continue_generation")
    await chat


async def test_the_model_decides_the_defaults_of_chats(
    it: Served, fake: ChatFake, tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    await it.ok(CHAT, messages=MESSAGES, max_tokens=1, top_k=5)
    params = fake.seen[-1]["sampling_params"]
    assert (params["temperature"], params["top_k"], params["top_p"]) == (0.6, 5, 1.0)
    await it.ok(COMPLETIONS, prompt=" w100", max_tokens=1)
    assert fake.seen[-1]["sampling_params"]["temperature"] == 1.0


async def test_errors_have_the_fields_of_sglang_and_of_openai(it: Served) -> None:
    headers = {"Content-Type": "application/json"}
    async with it.session.post(f"{it.url}{CHAT}", data=b"[1", headers=headers) as reply:
        assert reply.status == 400
        error = await reply.json()
    assert error["object"] == "error" and error["code"] == 400
    assert error["type"] == "BadRequestError"
    assert error["error"]["message"] == error["message"]


async def test_an_error_before_the_first_token_is_no_stream(tmp_path: Path) -> None:
    fake = ChatFake()
    model = {"path": model_folder(tmp_path)}
    async with served(fake, model=model, server={"max_requests": 1}) as it:
        status, error = await it.post(COMPLETIONS, prompt=" w100", n=2, stream=True)
        assert status == 429 and error["type"] == "RateLimitError"
