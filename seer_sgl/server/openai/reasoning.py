"""Separates the reasoning from finished texts of chats, with the parser of an engine.

In SGLang's chat endpoint the parser knows whether the template has opened the reasoning; behind
`/separate_reasoning` it does not. So this module asks an engine once per set of template variables,
with a chat whose only token is known.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.server.errors import HttpError
from seer_sgl.server.passthrough.reasons import NotDivisible

from .bodies import ChatBody
from .engines import Engines, Facts

Json = dict[str, Any]
START, END = "<think>", "</think>"
# The parsers with these marks and nothing special (BaseReasoningFormatDetector).
PARSERS = (
    *("deepseek-r1", "deepseek-v3", "dots", "glm45", "interns1", "mimo", "minimax", "nanbeige"),
    *("qwen3", "qwen3-thinking", "step3", "step3p5"),
)
VARIABLES = ("chat_template_kwargs", "reasoning_effort", "reasoning")
WORD = " 1"  # of which the probes consist
CERTAIN = 100  # a logit bias that makes a token certain
MOST_MODES = 256  # a client chooses the variables, and must not choose how many are kept


class Separated(msgspec.Struct):
    """The reply to `/separate_reasoning`."""

    reasoning_text: str | None
    text: str | None


class Mode(msgspec.Struct, frozen=True):
    """How SGLang treats chats with one set of template variables.

    `open`: their reasoning begins without a mark. `counted`: reasoning tokens are counted.
    """

    open: bool
    counted: bool


class Reasoning:
    """The reasoning parser of the engines. `facts`: of the engines that have it."""

    def __init__(self, engines: Engines, tokenizer: Tokenizer, facts: Facts) -> None:
        self._engines = engines
        self.facts = facts
        self._end_ids = tokenizer.encode_part(END)
        self._word = tokenizer.encode_part(WORD)[-1:]
        self._word_text = tokenizer.decode(self._word).strip()
        self._open_by_default = False
        self._probed = False
        self._modes: dict[bytes, Mode] = {}

    async def mode(self, chat: ChatBody) -> Mode:
        """Returns the mode of a chat. Raises NotDivisible if the parser does more than separate."""
        if self.facts.reasoning_parser not in PARSERS or self.facts.enable_strict_thinking:
            raise NotDivisible("reasoning_parser")
        if chat.stream or chat.continue_final_message:
            raise NotDivisible("reasoning_parser")
        if "force_nonempty_content" in (chat.chat_template_kwargs or {}):
            raise NotDivisible("force_nonempty_content")
        if not self._probed:
            separated = await self._separate(WORD)
            if separated is None:
                raise NotDivisible("reasoning_parser")
            self._open_by_default, self._probed = not separated.text, True
        variables = {name: getattr(chat, name) for name in VARIABLES}
        key = msgspec.json.encode(variables, order="deterministic")
        mode = self._modes.get(key)
        if mode is None:
            mode = await self._probe(variables)
            if len(self._modes) >= MOST_MODES:
                self._modes.clear()
            self._modes[key] = mode
        return mode

    async def take(self, event: Json, mode: Mode, *, separate: bool) -> None:
        """Counts the reasoning tokens of a finished event, and moves its reasoning out of the text.

        Raises HttpError if the engine's parser fails, in SGLang's words.
        """
        if mode.counted:
            meta = event["meta_info"]
            meta["reasoning_tokens"] = reasoning_tokens(event["output_ids"], self._end_ids)
        if not separate:
            return
        text: str = event["text"]
        if mode.open and not self._open_by_default:
            text = START + text
        elif self._open_by_default and not mode.open and START not in text:
            return
        separated = await self._separate(text)
        if separated is None:
            raise HttpError("Failed to parse reasoning content")
        event["reasoning"], event["text"] = separated.reasoning_text, separated.text or ""

    async def _probe(self, variables: Json) -> Mode:
        body = {name: value for name, value in variables.items() if value is not None} | {
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 1,
            "temperature": 0.0,
            "logit_bias": {str(token): CERTAIN for token in self._word},
            "ignore_eos": True,
        }
        await self._engines.until_they_generate()
        answer = await self._engines.ask("POST", "/v1/chat/completions", msgspec.json.encode(body))
        reply = answer.decoded(dict[str, Any])
        try:
            assert reply is not None
            message = reply["choices"][0]["message"]
            counted = bool(reply["usage"]["reasoning_tokens"])
            content, reasoning = message["content"] or "", message["reasoning_content"] or ""
        except (AssertionError, LookupError, TypeError) as error:
            raise NotDivisible("reasoning_parser") from error
        if not self._word_text or self._word_text not in content + reasoning:
            raise NotDivisible("reasoning_parser")
        return Mode(open=not content, counted=counted)

    async def _separate(self, text: str) -> Separated | None:
        wanted = {"text": text, "reasoning_parser": self.facts.reasoning_parser}
        answer = await self._engines.ask("POST", "/separate_reasoning", msgspec.json.encode(wanted))
        return answer.decoded(Separated)


def reasoning_tokens(ids: Sequence[int], end: Sequence[int]) -> int:
    """Returns how many tokens belong to the reasoning, with those that end it."""
    end = list(end)
    for stop in range(len(end), len(ids) + 1):
        if list(ids[stop - len(end) : stop]) == end:
            return stop
    return len(ids)
