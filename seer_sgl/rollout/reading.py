"""Compares how engines and this process read text, with a fixed set of texts.

SGLang serves `/v1/tokenize` and `/v1/detokenize` from the tokenizer that reads its prompts and stop
strings. A difference would give other prompts, other ends of responses and other texts.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from seer_sgl.driver.pool_pages import common_prefix
from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.engine.answers import ask
from seer_sgl.engine.client import HttpEngine
from seer_sgl.errors import ConfigError, EngineStartError, EngineUnavailable

logger = logging.getLogger(__name__)
# What tokenizers treat differently: white space, case, digits, punctuation, contractions, other
# scripts and normalisation forms, emoji of several characters, control characters, U+FFFD.
TEXTS = (
    "The quick brown fox; it's here, isn't it ?",
    "x\n\n\ty  \n a\r\n",
    " lead and trail ",
    " " * 17,
    "def f(a=1_000, *b):\n    return {a: b[-1]}  # 3.14159e-10",
    "0123456789 12,345 1e6",
    "日本語のテキスト。한국어 中文!",
    "Ünïcödé é e\u0301 ﬁ ① ½ ẞ İ",
    "مرحبا שלום नमस्ते ไทย",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 \u200d\ufe0f",
    "\ufffd \ufffd\ufffd",
    "\x01\x1b[0m\x7f\u200b\u2028\u00a0",
    "▁a ĠbĊ <0x0A> </s><s>[INST]<|im_end|><|endoftext|>",
    "a",
)
CHAT = [{"role": "user", "content": "x"}]  # a chat that every template renders
SINGLE_TOKENS = 256  # tokens that are decoded one by one, evenly spread over the vocabulary
SHOWN = 6  # tokens of a difference
TOKENIZE, DETOKENIZE = "/v1/tokenize", "/v1/detokenize"


class TextReading(msgspec.Struct, frozen=True):
    """How TEXTS and CHAT are read, and token lists with their texts.

    prompts, parts: the tokens of each text, with and without special tokens. `chat`: None if it is
    not rendered.
    """

    prompts: list[list[int]]
    parts: list[list[int]]
    decoded: list[tuple[list[int], str]]
    chat: list[int] | None


class _TokenLists(msgspec.Struct):
    tokens: list[list[int]]


class Tokens(msgspec.Struct):
    """The reply to TOKENIZE for one text or chat."""

    tokens: list[int]


class _Texts(msgspec.Struct):
    text: list[str]


async def check_reading(engines: Sequence[HttpEngine], tokenizer: Tokenizer | None) -> str | None:
    """Raises ConfigError if an engine reads text otherwise than this process.

    Without a tokenizer here, the engines are compared with the first of them. Returns which engine
    renders chats otherwise; None if all render them alike. Raises EngineStartError if an engine
    does not answer.
    """
    asked = [engine for engine in engines if engine.info.has_tokenizer and engine.info.url]
    own, owner = None, "this process"
    try:
        if tokenizer is not None:
            own = own_reading(tokenizer)
        elif len(asked) > 1:
            first = asked.pop(0)
            own, owner = await engine_reading(first), f"engine {first.info.engine_id}"
        if own is None:
            return None
        lists = [ids for ids, _ in own.decoded]
        readings = await asyncio.gather(*(engine_reading(engine, lists) for engine in asked))
    except EngineUnavailable as error:
        raise EngineStartError(str(error)) from error
    chats = None
    for engine, reading in zip(asked, readings, strict=True):
        name = f"engine {engine.info.engine_id} ({engine.info.url})"
        if reading is None:
            logger.warning("%s does not show how it reads text: no %s", name, TOKENIZE)
            continue
        problem = difference(own, reading)
        if problem is not None:
            raise ConfigError(f"{name} reads text otherwise than {owner}: {problem}")
        if own.chat is not None and own.chat != reading.chat:
            chats = chats or f"{name} renders chats otherwise than {owner}"
    return chats


async def misreading(engine: HttpEngine, tokenizer: Tokenizer | None) -> str | None:
    """Returns the difference that `check_reading` finds; None if there is none.

    Raises EngineStartError if the engine does not answer.
    """
    try:
        await check_reading([engine], tokenizer)
    except ConfigError as error:
        return str(error)
    return None


def own_reading(tokenizer: Tokenizer) -> TextReading:
    """Returns how this process reads."""
    prompts = [tokenizer.served_tokens(text, True) for text in TEXTS]
    parts = [tokenizer.served_tokens(text, False) for text in TEXTS]
    size = tokenizer.vocab_size
    singles = [[token] for token in range(0, size, max(1, size // SINGLE_TOKENS))]
    lists = [ids for ids in [*prompts, *parts, *singles] if ids]
    try:
        chat = tokenizer.apply_chat_template(CHAT).tolist()
    except ValueError:
        chat = None
    return TextReading(prompts, parts, [(ids, tokenizer.served_text(ids)) for ids in lists], chat)


async def engine_reading(
    engine: HttpEngine, lists: list[list[int]] | None = None
) -> TextReading | None:
    """Returns how an engine reads; None if it does not serve TOKENIZE.

    lists: the token lists to decode; None: the engine's own. Raises EngineUnavailable.
    """
    texts = {"prompt": TEXTS, "add_special_tokens": True}
    prompts = await _post(engine, TOKENIZE, texts, _TokenLists)
    if prompts is None:
        return None
    parts = await _post(engine, TOKENIZE, texts | {"add_special_tokens": False}, _TokenLists)
    if lists is None:
        lists = [ids for ids in prompts.tokens if ids]
    decoded = await _post(
        engine, DETOKENIZE, {"tokens": lists, "skip_special_tokens": False}, _Texts
    )
    chat = await _post(engine, TOKENIZE, {"messages": CHAT}, Tokens)
    return TextReading(
        prompts.tokens,
        [] if parts is None else parts.tokens,
        [] if decoded is None else list(zip(lists, decoded.text, strict=False)),
        None if chat is None else chat.tokens,
    )


async def _post(engine: HttpEngine, path: str, body: Any, kind: type[Any]) -> Any:
    """Returns an engine's answer; None for an error of SGLang, or if it has no such endpoint."""
    answer = await ask(engine, "POST", path, msgspec.json.encode(body))
    return answer.decoded(kind)


def difference(own: TextReading, other: TextReading) -> str | None:
    """Returns the first difference of two readings, chats excepted; None if there is none."""
    for kind, ours, theirs in (
        ("prompt", own.prompts, other.prompts),
        ("text", own.parts, other.parts),
    ):
        for number, (text, here) in enumerate(zip(TEXTS, ours, strict=True)):
            there = theirs[number] if number < len(theirs) else []
            if here != there:
                start = common_prefix(here, there)
                return (
                    f"the tokens of the {kind} {text!r} differ from number {start} on: "
                    f"{_shown(there, start)} there, {_shown(here, start)} here"
                )
    for number, (ids, here_text) in enumerate(own.decoded):
        there_text = other.decoded[number][1] if number < len(other.decoded) else None
        if here_text != there_text:
            return f"the tokens {ids[:SHOWN]} are {there_text!r} there, {here_text!r} here"
    return None


def _shown(ids: Sequence[int], start: int) -> str:
    return str(list(ids[start : start + SHOWN]))
