"""OpenAI's endpoints through the rollout server equal SGLang's own, field by field."""

from typing import Any

import openai
import pytest

from seer_sgl.backend.replies import without_location
from tests.e2e.chats import CHAT, COMPLETIONS, MESSAGES, TEXT, TOOL, Json, both, both_streams
from tests.e2e.served import serving

pytestmark = pytest.mark.shared_engines

DIVIDED: list[tuple[str, Json]] = [
    (COMPLETIONS, {"prompt": TEXT, "n": 4, "logprobs": 0, "echo": True, "max_tokens": 200}),
    (COMPLETIONS, {"prompt": [TEXT, " 1 2"], "stop": [" so"], "temperature": 0.7, "top_p": 0.9}),
    (COMPLETIONS, {"prompt": [1, 5, 6], "echo": True, "ignore_eos": True, "max_tokens": 150}),
    (
        COMPLETIONS,
        {
            **{"prompt": [[1, 5, 6, 17], [1, 9, 9]], "n": 2, "max_tokens": 300, "min_tokens": 150},
            **{"stop": " so", "no_stop_trim": True, "return_token_ids": True},
        },
    ),
    (CHAT, {"messages": MESSAGES, "n": 4, "logprobs": True, "max_tokens": 200}),
    (CHAT, {"messages": MESSAGES, "temperature": 1.3}),
    (CHAT, {"messages": MESSAGES, "tools": [TOOL], "max_completion_tokens": 80, "top_k": 5}),
    (
        CHAT,
        {
            "messages": [*MESSAGES, {"role": "assistant", "content": " so 4"}],
            **{"continue_final_message": True, "max_tokens": 70},
        },
    ),
]
UNDIVIDED: list[tuple[str, Json, str]] = [
    (COMPLETIONS, {"prompt": TEXT, "logprobs": 2}, "logprobs"),
    (COMPLETIONS, {"prompt": TEXT, "frequency_penalty": 0.5}, "frequency_penalty"),
    (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"messages": MESSAGES, "presence_penalty": 0.5}, "presence_penalty"),
]
REFUSED: list[tuple[str, Json]] = [
    (COMPLETIONS, {"prompt": ""}),
    (COMPLETIONS, {"prompt": TEXT, "max_tokens": 10**6}),
    (COMPLETIONS, {"prompt": TEXT, "temperature": -1}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "always"}),
]


async def test_responses_are_those_of_sglang(engine_urls: list[str]) -> None:
    async with serving(engine_urls) as it:
        for path, fields in DIVIDED:
            body = {"seed": 3, "max_tokens": 100, **fields}
            theirs, ours = await both(it, engine_urls[0], path, body)
            assert ours == theirs, fields
            theirs, ours = await both_streams(it, engine_urls[0], path, body)
            assert ours == theirs, fields
        assert not it.service.passthrough.counts


async def test_what_no_other_chunk_continues_is_answered_by_an_engine(
    engine_urls: list[str],
) -> None:
    async with serving(engine_urls) as it:
        for number, (path, fields, reason) in enumerate(UNDIVIDED):
            body = {"seed": 3, "max_tokens": 30, **fields}
            theirs, ours = await both(it, engine_urls[0], path, body)
            assert ours == theirs, fields
            assert it.service.passthrough.counts[reason] == 1
            assert it.service.passthrough.counts.total() == number + 1


async def test_what_sglang_refuses_is_refused_in_its_words(engine_urls: list[str]) -> None:
    async with serving(engine_urls) as it:
        for path, fields in REFUSED:
            theirs, ours = await both(it, engine_urls[0], path, {"seed": 3, **fields}, status=400)
            assert ours == without_location(theirs), fields
            assert "http_server.py" not in str(ours)


async def test_requests_without_a_seed_differ_on_deterministic_engines(
    engine_urls: list[str],
) -> None:
    async with serving(engine_urls) as it:
        texts, free = set(), {"max_tokens": 40, "temperature": 3.0}
        for more in ({}, {"logprobs": 1}):  # divided and not
            for _ in range(3):
                status, reply = await it.post(COMPLETIONS, prompt=TEXT, **free, **more)
                assert status == 200
                texts.add(reply["choices"][0]["text"])
        assert len(texts) == 6


async def test_the_openai_package_gets_completions_chats_and_streams(
    engine_urls: list[str],
) -> None:
    async with (
        serving(engine_urls) as it,
        openai.AsyncOpenAI(base_url=f"{it.url}/v1", api_key="any") as client,
    ):
        ask: Json = {"model": "any", "max_tokens": 100, "seed": 3}
        completion = await client.completions.create(prompt=TEXT, n=4, logprobs=0, **ask)
        assert len(completion.choices) == 4
        assert completion.usage is not None and completion.usage.prompt_tokens == 8
        chat = await client.chat.completions.create(messages=MESSAGES, tools=[TOOL], **ask)
        said = chat.choices[0].message.content
        stream: Any = await client.chat.completions.create(
            messages=MESSAGES, tools=[TOOL], stream=True, **ask
        )
        pieces = [part.choices[0].delta.content or "" async for part in stream]
        assert said and "".join(pieces) == said
        with pytest.raises(openai.BadRequestError, match="Prompt cannot be empty"):
            await client.completions.create(prompt="", **ask)
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.models.retrieve("another")
