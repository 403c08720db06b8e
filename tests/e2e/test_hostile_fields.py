"""Every field with values of every JSON type, against a real engine: none ends it.

None gets a 5xx either: what SGLang fails with is refused with a reason.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from seer_sgl.rollout.rollout import Rollout
from seer_sgl.server.openai.pass_through import PLACED
from seer_sgl.server.openai.undivided import RENAMED
from seer_sgl.server.sglang_fields import DROPPED, INTERNAL, GenerateFields, SamplingFields
from tests.e2e.conftest import SERVER_FLAGS, external, servers, two_urls
from tests.server.helpers import Served, served_config

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

Json = dict[str, Any]
AT_ONCE = 8
ENOUGH_S = 60.0  # a request that an engine died of waits for ever
TEXT = "<bos> 4 6 2 , 3 7 ?"
MESSAGES = [{"role": "user", "content": "gcd 4 6 2 , 3 7 ?"}]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 5, 300, 3e9, 1.5, -0.5, 1e308, -1e308),
    *(1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 64, "", "x", "5", ".*.*z", "HEALTH_CHECK_1"),
    *([], [[]], [None], [1], [-1], [1, "a"], ["a"], ["a", "b"], [True], [0.5], [[1, 2], [3]]),
    *([{}], {}, {"a": 1}, {"a": [1]}, {"a": {"b": [1]}}, {"id": "x"}, {"id": 5}, {"5": 1.5}),
    *({"5": 1e308}, {"5": None}, {"seer_sgl": {"group": 5}}, {"__req__": 1}, [{"n": 2}]),
]
# Fields that SGLang's own processes set in SamplingParams, and one that nobody has.
SET_BY_SGLANG = (
    *("stop_strs", "stop_regex_strs", "stop_str_max_len", "stop_regex_max_len"),
    *("is_normalized", "ebnf_full_assistant", "nobody_has_this"),
)
GENERATE = (*GenerateFields.__struct_fields__, *INTERNAL, *DROPPED, "nobody_has_this")
SAMPLING = (*SamplingFields.__struct_fields__, *SET_BY_SGLANG)
OPENAI = tuple(
    dict.fromkeys((*GENERATE, *SAMPLING, *RENAMED, "prompt", "logprobs", "top_logprobs"))
)


def generate(params: Json, **fields: Any) -> Json:
    prompt = {} if {"text", "input_ids", "input_embeds"} & set(fields) else {"text": TEXT}
    return prompt | {"sampling_params": {"max_new_tokens": 3} | params} | fields


def fields() -> Iterator[tuple[str, Json]]:
    """Yields path and body for each field of `/generate`."""
    for name, value in itertools.product(GENERATE, VALUES):
        yield "/generate", generate({}, **{name: value})
        yield "/generate", generate({}, **{"text": TEXT, name: value, "return_logprob": True})
        batch = {"text": [TEXT, TEXT], name: value, "top_logprobs_num": 1}
        yield "/generate", generate({}, **batch)


def parameters() -> Iterator[tuple[str, Json]]:
    """Yields path and body for each sampling parameter."""
    for name, value in itertools.product(SAMPLING, VALUES):
        yield "/generate", generate({name: value})
        more = {"min_new_tokens": 2, "frequency_penalty": 0.1, name: value}
        yield "/generate", generate(more, stream=True, top_logprobs_num=1)


def completions() -> Iterator[tuple[str, Json]]:
    """Yields path and body for each field of OpenAI's completions."""
    for name, value in itertools.product(OPENAI, VALUES):
        yield "/v1/completions", {"prompt": TEXT, "logprobs": 1, "max_tokens": 3, name: value}


def others() -> Iterator[tuple[str, Json]]:
    """Yields path and body for the fields of a chat that reach SGLang's scheduler, and for some of
    other endpoints; not `/api/chat`, where SGLang 0.5.21 fails with every chat."""
    chat: Json = {"messages": MESSAGES, "max_tokens": 3}
    for name, value in itertools.product((*SAMPLING, *RENAMED, "rid", "logprobs"), VALUES):
        yield "/v1/chat/completions", {**chat, "top_logprobs": 1, name: value}
    placed = [path for path in PLACED if path not in ("/vertex_generate", "/api/chat")]
    for path, name, value in itertools.product(placed, ("text", "input", "top_k"), VALUES):
        yield path, {**chat, "model": "any", "prompt": TEXT, "input": TEXT, name: value}
    for name, value in itertools.product(("temperature", "top_k", "stop", "num_predict"), VALUES):
        yield "/api/generate", {"model": "any", "prompt": TEXT, "options": {name: value}}


class Asked:
    """The answers by status, and the bodies whose answer was a 5xx or none."""

    def __init__(self, it: Served) -> None:
        self._it = it
        self.statuses: Counter[int] = Counter()
        self.failed: list[tuple[str, Json, str]] = []

    async def ask_all(self, bodies: Iterator[tuple[str, Json]]) -> None:
        """Sends the bodies one after another; shared by several tasks."""
        for path, body in bodies:
            if len(self.failed) > 5:
                return
            await self.ask(path, body)

    async def ask(self, path: str, body: Json) -> None:
        """Sends one body."""
        try:
            async with (
                asyncio.timeout(ENOUGH_S),
                self._it.session.post(f"{self._it.url}{path}", json=body) as reply,
            ):
                status, text = reply.status, await reply.text()
        except (TimeoutError, aiohttp.ClientError) as error:
            status, text = 0, repr(error)
        self.statuses[status] += 1
        if status == 0 or status >= 500:
            self.failed.append((path, body, f"{status} {text[:200]}"))
            print(*self.failed[-1], flush=True)


@pytest.mark.parametrize("pairs", [fields, parameters, completions, others])
async def test_no_value_of_any_field_ends_an_engine(
    tmp_path: Path, pairs: Callable[[], Iterator[tuple[str, Json]]]
) -> None:
    urls = two_urls()[:1]
    with servers(urls, [SERVER_FLAGS], tmp_path):
        processes = psutil.Process().children(recursive=True)
        config = external(urls) | {"server": {"port": 0, "group_window_s": 0.0}}
        async with served_config(Rollout(config, gives_up=False)) as it:
            asked, bodies = Asked(it), pairs()
            await asyncio.gather(*(asked.ask_all(bodies) for _ in range(AT_ONCE)))
            print(dict(asked.statuses), "of", asked.statuses.total(), "pairs")
            assert not asked.failed
            assert (await it.generate(**generate({})))["meta_info"]["completion_tokens"] == 3
        ended = [each for each in processes if not each.is_running() or each.status() == "zombie"]
    assert not ended
