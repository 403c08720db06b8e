"""Chats on engines with parsers of reasoning and of calls, through the server and straight."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chats import CHAT, MESSAGES, TOOL, both
from tests.e2e.conftest import SERVER_FLAGS, servers, two_cores, two_urls
from tests.e2e.served import serving

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

FLAGS = [*SERVER_FLAGS, "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen"]
CHATS: list[dict[str, Any]] = [
    {"n": 4, "logprobs": True},
    {"max_tokens": 100},  # ends inside the reasoning
    {"separate_reasoning": False},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"reasoning_effort": "none", "return_token_ids": True},
    {"reasoning": {"enabled": True}, "tools": [TOOL]},
    {"skip_special_tokens": False, "return_prompt_token_ids": True},
]


async def test_chats_are_parsed_as_by_sglang(tmp_path: Path) -> None:
    urls = two_urls()
    with servers(urls, [FLAGS] * 2, tmp_path, cores=two_cores()):
        async with serving(urls) as it:
            reasoned = []
            for fields in CHATS:
                body = {"messages": MESSAGES, "seed": 3, "max_tokens": 2000, **fields}
                theirs, ours = await both(it, urls[0], CHAT, body)
                assert ours == theirs, fields
                message = ours["choices"][0]["message"]
                reasoned.append(message["reasoning_content"] is not None)
            assert set(reasoned) == {True, False}
            assert not it.service.passthrough.counts
