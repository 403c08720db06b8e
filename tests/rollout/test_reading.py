"""Engines that read text otherwise than this process, or than each other, are refused."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from aiohttp import web
from typing_extensions import override

from seer_sgl import Rollout
from seer_sgl.config import parse
from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.errors import ConfigError, PromptError
from seer_sgl.link.tokenizer import TokenizerSource
from seer_sgl.rollout.model import tokenizer_source
from seer_sgl.rollout.reading import CHAT, difference, own_reading
from tests.fake_sglang import FakeSGLang, serving


class Letters:
    """A tokenizer of characters; it has what SGLang's endpoints call."""

    def __init__(self, *, bos: int | None = 1, shift: int = 2, chat: str = "<{}>") -> None:
        self.bos = bos
        self._shift = shift
        self._chat = chat

    def __len__(self) -> int:
        return 900

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        first = [self.bos] if add_special_tokens and self.bos is not None else []
        return first + [self._shift + ord(character) % 800 for character in text]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(33 + token - self._shift) for token in ids if token >= self._shift)

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> list[int]:
        return self.encode(self._chat.format(messages[0]["content"]), False)


@dataclass(eq=False)
class Reader(FakeSGLang):
    """A fake server with a tokenizer; None: it lacks the endpoints."""

    reads: Letters | None = field(default_factory=Letters)

    @override
    def app(self) -> web.Application:
        app = super().app()
        if self.reads is not None:
            app.router.add_post("/v1/tokenize", self.tokenize)
            app.router.add_post("/v1/detokenize", self.detokenize)
        return app

    async def tokenize(self, http: web.Request) -> web.Response:
        assert self.reads is not None
        body = msgspec.json.decode(await http.read())
        if "messages" in body:
            return web.json_response({"tokens": self.reads.apply_chat_template(body["messages"])})
        special = body["add_special_tokens"]
        tokens = [self.reads.encode(text, special) for text in body["prompt"]]
        return web.json_response({"tokens": tokens})

    async def detokenize(self, http: web.Request) -> web.Response:
        assert self.reads is not None
        body = msgspec.json.decode(await http.read())
        return web.json_response({"text": [self.reads.decode(ids) for ids in body["tokens"]]})


@contextlib.asynccontextmanager
async def opened(engines: list[Reader], own: Letters | None, **more: Any) -> AsyncIterator[Rollout]:
    """Yields an open rollout over the engines whose driver has the tokenizer `own`."""
    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(engine)) for engine in engines]
        config = {"engines": {"launch": "external", "urls": urls}, **more}
        rollout = Rollout(config)
        rollout.tokenizer = None if own is None else Tokenizer(own)
        yield await stack.enter_async_context(rollout)


async def test_engines_that_read_alike_are_accepted() -> None:
    async with opened([Reader(), Reader()], Letters()) as rollout:
        assert len(rollout.engines) == 2
        (prompt,) = rollout.prompt_reader().convert([{"messages": CHAT}])
        assert prompt.prompt_ids.tolist() == Letters().apply_chat_template(CHAT)


@pytest.mark.parametrize(
    ("theirs", "line"),
    [
        (
            Letters(bos=None),
            r"the prompt .* from number 0 on: \[86, .*\] there, \[1, 86, .*\] here",
        ),
        (Letters(shift=3), r"the prompt .* from number 1 on: \[87, .*\] there, \[86, .*\] here"),
    ],
)
async def test_an_engine_that_reads_otherwise_is_refused_in_one_line(
    theirs: Letters, line: str
) -> None:
    with pytest.raises(ConfigError, match=line) as raised:
        async with opened([Reader(), Reader(reads=theirs)], Letters()):
            pass
    assert str(raised.value).startswith("engine e1 (http://127.0.0.1:")
    assert "\n" not in str(raised.value)


async def test_engines_are_compared_with_each_other_without_a_tokenizer_here() -> None:
    with pytest.raises(ConfigError, match=r"engine e1 .* reads text otherwise than engine e0: "):
        async with opened([Reader(), Reader(reads=Letters(bos=None))], None):
            pass
    async with opened([Reader(), Reader()], None) as rollout:
        assert len(rollout.engines) == 2


async def test_an_engine_that_reads_otherwise_does_not_join_later() -> None:
    async with (
        opened([Reader()], Letters()) as rollout,
        serving(Reader(reads=Letters(shift=3))) as url,
    ):
        with pytest.raises(ConfigError, match=r"engine e1 .* reads text otherwise"):
            await rollout.backend.join(url)
        assert [info.engine_id for info in rollout.engines] == ["e0"]


async def test_an_engine_that_comes_back_with_another_tokenizer_does_not_serve() -> None:
    fake = Reader()
    async with opened([fake], Letters()) as rollout:
        (engine,) = rollout.fleet.engines
        fake.startup_s += 1
        assert await engine.problem() is None, "it was restarted and reads as before"
        fake.startup_s += 1
        fake.reads = Letters(shift=3)
        problem = await engine.problem()
        assert problem is not None
        assert "reads text otherwise than this process" in problem.why


async def test_only_messages_are_refused_if_engines_render_chats_otherwise() -> None:
    async with opened([Reader(reads=Letters(chat="[{}]"))], Letters()) as rollout:
        reader = rollout.prompt_reader()
        assert reader.convert([{"prompt": "x"}])
        with pytest.raises(PromptError, match=r"prompts\[0\]: messages: engine e0 .* chats other"):
            reader.convert([{"messages": CHAT}])


async def test_an_engine_without_the_endpoints_or_a_tokenizer_is_not_compared(
    log_lines: list[str],
) -> None:
    async with opened([Reader(reads=None), Reader(reads=None, has_tokenizer=False)], Letters()):
        pass
    assert [line.partition(" (")[0] for line in log_lines if "how it reads" in line] == [
        "engine e0"
    ]


def test_another_token_in_the_vocabulary_is_a_difference() -> None:
    class Other(Letters):
        @override
        def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
            return "other" if ids == [450] else super().decode(ids)

    own, other = own_reading(Tokenizer(Letters())), own_reading(Tokenizer(Other()))
    assert difference(own, own) is None
    assert difference(own, other) == "the tokens [450] are 'other' there, 'ǡ' here"


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({}, {}),
        ({"tokenizer-mode": "slow", "revision": 5}, {"tokenizer_mode": "slow", "revision": "5"}),
        ({"tokenizer_backend": "fastokens"}, {"tokenizer_backend": "fastokens"}),
        ({"enable-multimodal": True}, {"enable_multimodal": True}),
        ({"enable-multimodal": False}, {"enable_multimodal": False}),
    ],
)
def test_the_tokenizer_is_loaded_with_the_flags_of_the_engines(
    flags: dict[str, Any], wanted: dict[str, Any]
) -> None:
    config = parse({"model": {"path": "m"}, "engines": {"sglang": flags}})
    assert tokenizer_source(config) == TokenizerSource(tokenizer_path="m", model_path="m", **wanted)
