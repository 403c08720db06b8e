"""Parses bodies of `/v1/completions` and `/v1/chat/completions` into `GenerateRequest`s. Pure.

SGLang parses them into a `GenerateReqInput` (entrypoints/openai/serving_completions.py and
serving_chat.py).
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from seer_sgl.admission.sglang_fields import SamplingFields
from seer_sgl.server.decode import decode_fields
from seer_sgl.server.generate_body import (
    GenerateRequest,
    misread,
    require_few_ids,
    require_neutral,
    require_short_chat,
)
from seer_sgl.server.passthrough.reasons import NotDivisible

Json = dict[str, Any]
T = TypeVar("T", bound="OpenAIBody")
# Fields that SGLang ignores, or that change nothing in the response.
IGNORED = (
    *("user", "best_of", "suffix", "custom_labels", "parallel_tool_calls", "stream_reasoning"),
    *("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "routed_experts_start_len": (0,),
    "top_logprobs": (0,),
}


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream contains beside the text."""

    include_usage: bool | None = None
    """A last event with the usage of the whole request."""
    continuous_usage_stats: bool | None = None
    """The usage so far in every event."""


class OpenAIBody(msgspec.Struct, kw_only=True):
    """The fields that both endpoints share: those that can cross a chunk boundary, and ours.

    A field of SGLang's that is not here, with a value other than its default, makes the request
    undivided.
    """

    model: str = "default"
    """Any name; it is returned in the response."""
    n: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Responses per prompt."""
    seed: int | None = None
    """Seed of sampling; drawn for each response if it is missing."""
    stop: str | list[str] | None = None
    """Stop strings."""
    stream: bool = False
    """Server-sent events with the new text."""
    stream_options: StreamOptions | None = None
    """What a stream contains beside the text."""
    logit_bias: dict[str, float] | None = None
    """Added to logits, by token id."""
    frequency_penalty: float = 0.0
    """Requests with penalties are sent undivided."""
    presence_penalty: float = 0.0
    """Requests with penalties are sent undivided."""
    min_tokens: int = 0
    """No stop before so many tokens."""
    regex: str | None = None
    """Requests with a grammar are sent undivided."""
    ebnf: str | None = None
    """Requests with a grammar are sent undivided."""
    stop_token_ids: list[int] | None = None
    """Tokens that end a response."""
    stop_regex: str | list[str] | None = None
    """Requests with such stops are sent undivided."""
    no_stop_trim: bool = False
    """Keep the stop string in the text."""
    ignore_eos: bool = False
    """Continue after the model's end token."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    custom_params: Json | None = None
    """Passed on to SGLang's custom logit processors."""
    return_token_ids: bool = False
    """Return the token ids of prompt and response."""
    rid: str | list[str] | None = None
    """Name of the request."""
    group_id: str | int | None = None
    """Ours: responses with one group id are siblings, which are drafted from one another."""
    group_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Ours: how many responses the group will have in all."""
    session_id: str | int | None = None
    """Conversation: its next turn prefers the engine that has its KV."""

    def parameters(self) -> Json:
        """Returns SGLang's sampling parameters, most of which are fields of the same name."""
        names = SamplingFields.__struct_fields__
        same = {name: getattr(self, name) for name in self.__struct_fields__ if name in names}
        return same | {"min_new_tokens": self.min_tokens, "sampling_seed": self.seed}

    def generate(self, prompt: Json, parameters: Json, logprobs: bool) -> GenerateRequest:
        """Returns the request to `/generate`. `prompt`: `text` or `input_ids`."""
        return GenerateRequest(
            **prompt,
            sampling_params=parameters,
            rid=self.rid,
            stream=self.stream,
            return_logprob=logprobs,
            return_text_in_logprobs=True,
            group_id=self.group_id,
            group_size=self.group_size,
            session_id=self.session_id,
        )


class CompletionBody(OpenAIBody, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: Any
    """Text, token ids, or a list of either."""
    echo: bool = False
    """Put the prompt before the text."""
    logprobs: int | None = None
    """0: the log probability of each token. More: requests with top tokens are sent undivided."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 16
    """Most tokens of a response."""
    temperature: float = 1.0
    """0: greedy."""
    top_p: float = 1.0
    """Keep the most likely tokens up to this probability."""
    top_k: int = -1
    """Keep the k most likely tokens; -1: all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the most likely token's probability."""
    repetition_penalty: float = 1.0
    """Requests with penalties are sent undivided."""
    json_schema: str | None = None
    """Requests with a grammar are sent undivided."""

    def request(self) -> GenerateRequest:
        """Returns the request to `/generate`. Raises NotDivisible."""
        if self.logprobs:
            raise NotDivisible("logprobs")
        parameters = self.parameters() | {"max_new_tokens": self.max_tokens}
        return self.generate(self._prompt(), parameters, self.logprobs is not None)

    def _prompt(self) -> Json:
        prompt = self.prompt
        first = prompt[0] if isinstance(prompt, list) and prompt else None
        if isinstance(prompt, str) and prompt:
            return {"text": prompt}
        if isinstance(first, str) and all(isinstance(text, str) and text for text in prompt):
            return {"text": prompt}
        if isinstance(first, int | list):
            return {"input_ids": prompt}
        raise NotDivisible("prompt")


class ChatBody(OpenAIBody, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: list[Json]
    """The conversation. An engine makes a prompt of it, with its chat template."""
    logprobs: bool = False
    """Return the log probability of each token."""
    max_tokens: int | None = None
    """Most tokens of a response. Default: what the context leaves."""
    max_completion_tokens: int | None = None
    """Most tokens of a response, before `max_tokens` if both are given."""
    temperature: float | None = None
    """Default of this and the next four: the model's generation config."""
    top_p: float | None = None
    """Keep the most likely tokens up to this probability."""
    top_k: int | None = None
    """Keep the k most likely tokens; -1: all."""
    min_p: float | None = None
    """Keep tokens with at least this share of the most likely token's probability."""
    repetition_penalty: float | None = None
    """Requests with penalties are sent undivided."""
    tools: list[Json] | None = None
    """Functions that the model may call."""
    tool_choice: Any = None
    """`none` or `auto`; requests with another choice are sent undivided."""
    input_ids: list[int] | None = None
    """The prompt's token ids, instead of what the chat template makes of the messages."""
    chat_template_kwargs: Json | None = None
    """Variables of the chat template."""
    continue_final_message: bool = False
    """Continue the last message of the assistant."""
    reasoning_effort: Any = None
    """Variable of the chat template."""
    reasoning: Any = None
    """Variable of the chat template, in another form."""
    separate_reasoning: bool = True
    """Return the reasoning apart from the content, if the engines have a reasoning parser."""
    return_prompt_token_ids: bool = False
    """Return the token ids of the prompt."""
    return_meta_info: bool = False
    """Return the `meta_info` of `/generate` with each choice."""

    @property
    def uses_tools(self) -> bool:
        """Whether the model may call a function."""
        return bool(self.tools) and self.tool_choice != "none"

    def request(self, prompt_ids: list[int], defaults: Mapping[str, float]) -> GenerateRequest:
        """Returns the request to `/generate`.

        `defaults`: of the five parameters whose default the model decides.
        """
        chosen = {
            name: defaults[name] if getattr(self, name) is None else getattr(self, name)
            for name in DEFAULTS
        }
        parameters = self.parameters() | chosen
        parameters["max_new_tokens"] = self.max_completion_tokens or self.max_tokens
        parameters["skip_special_tokens"] = self.skip_special_tokens and not self.uses_tools
        return self.generate({"input_ids": prompt_ids}, parameters, self.logprobs)


# OpenAI's defaults, where the model's generation config has none.
DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


def read_openai(body: bytes, kind: type[T], longest: int) -> T:
    """Returns a decoded body. `longest`: the most tokens of a prompt and its response.

    Raises NotDivisible, and BadRequest if it is not a JSON object or has far more tokens.
    """
    fields = decode_fields(body)
    for name in ("prompt", "input_ids"):
        require_few_ids(fields, longest, name)
    require_neutral(fields, (*kind.__struct_fields__, *IGNORED), NEUTRAL)
    try:
        found = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotDivisible(misread(error)) from error
    if isinstance(found, ChatBody):
        require_short_chat(found.messages, longest)
    if ":" in found.model:
        raise NotDivisible("lora_path")  # SGLang reads `model:adapter`
    return found
