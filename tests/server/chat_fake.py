"""A fake SGLang server with OpenAI's endpoints. A chat's prompt is CHAT_PROMPT."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from typing_extensions import override

from tests.e2e.conftest import MODEL
from tests.fake_sglang import VOCAB, FakeSGLang

CHAT_PROMPT = [1, 20, 21]
PATHS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/messages"),
    *("/v1/embeddings", "/v1/score", "/encode"),
)


@dataclass(eq=False)
class ChatFake(FakeSGLang):
    """`arguments`: fields of `/server_info` and `/model_info`. `received`: requests as they came.

    `opens_reasoning`: its chat template does. `parsed`: what `/parse_function_call` returns; None:
    it fails.
    """

    longest: int = 1000
    arguments: dict[str, Any] = field(default_factory=lambda: {"chat_template": "x.jinja"})
    received: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    parsed: dict[str, Any] | None = None
    renders: bool = True
    opens_reasoning: bool = True

    @override
    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/v1/tokenize", self.tokenize)
        app.router.add_post("/parse_function_call", self.parse_function_call)
        app.router.add_post("/separate_reasoning", self.separate_reasoning)
        app.router.add_post("/open_session", self.open_session)
        app.router.add_post("/close_session", self.undivided)
        for path in PATHS:
            app.router.add_post(path, self.undivided)
        return app

    @override
    async def server_info(self, http: web.Request) -> web.Response:
        return await self._with_arguments(await super().server_info(http))

    @override
    async def model_info(self, http: web.Request) -> web.Response:
        return await self._with_arguments(await super().model_info(http))

    async def tokenize(self, http: web.Request) -> web.Response:
        body = await self._receive(http)
        if not self.renders:
            return web.json_response({"object": "error", "message": "no"}, status=400)
        tokens = body.get("input_ids", CHAT_PROMPT)
        return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": 100})

    async def parse_function_call(self, http: web.Request) -> web.Response:
        await self._receive(http)
        return web.json_response(self.parsed, status=500 if self.parsed is None else 200)

    async def separate_reasoning(self, http: web.Request) -> web.Response:
        """The first word behind the first mark is reasoning, as with the parser `qwen3`."""
        text: str = (await self._receive(http))["text"]
        if not text.startswith("<think>"):
            return web.json_response({"reasoning_text": "", "text": text})
        words = text.removeprefix("<think>").split()
        reasoning, rest = " ".join(words[:1]), " ".join(words[1:])
        return web.json_response({"reasoning_text": reasoning, "text": rest})

    async def undivided(self, http: web.Request) -> web.Response:
        body = await self._receive(http)
        if "logit_bias" in body:  # asks how a chat of one known token is parsed
            kind = "reasoning_content" if self.opens_reasoning else "content"
            message = {"content": None, "reasoning_content": None, kind: "1"}
            usage = {"reasoning_tokens": 0}
            return web.json_response({"choices": [{"message": message}], "usage": usage})
        return web.json_response({"undivided": body})

    async def open_session(self, http: web.Request) -> web.Response:
        await self._receive(http)
        return web.json_response(f"session-{id(self)}")

    async def _receive(self, http: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await http.json()
        self.received.append((http.path, body))
        return body

    async def _with_arguments(self, response: web.Response) -> web.Response:
        assert isinstance(response.body, bytes)
        fields = msgspec.json.decode(response.body) | self.arguments
        return web.json_response(fields, status=response.status)


def word_of(token: int) -> str:
    """Returns the text of a token that the fake generates, in the tokenizer of `model_folder`."""
    return f" w{token}"


def model_folder(path: Path) -> str:
    """Makes a folder with a tokenizer of VOCAB tokens, and returns its name."""
    for name in ("generation_config.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, path / name)
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    added, plain = tokenizer["added_tokens"], tokenizer["added_tokens"][4]
    added += [{**plain, "id": i, "content": word_of(i)} for i in range(len(added), VOCAB)]
    config = json.loads((MODEL / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "vocab_size": VOCAB}))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(path)
