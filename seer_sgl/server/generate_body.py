"""The body of SGLang's `/generate`, and whether it can be divided into chunks. Pure."""

import re
import secrets
import uuid
from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from seer_sgl.admission.sampling import invalid, too_large, undivided
from seer_sgl.bounds import LARGEST_ID
from seer_sgl.config.values import invalid_values
from seer_sgl.rollout.images import MOST_OF_BODY, NO_IMAGES, ImageReader, Images
from seer_sgl.rollout.message_parts import parts_of
from seer_sgl.types import Sampling, token_array

from .calls import Call
from .decode import decode, decode_fields, unreadable_as_refusal
from .errors import BadRequest
from .passthrough.reasons import NotDivisible
from .prompt_texts import MOST_EXCESS, PromptTexts

Ids = list[int]
Parameters = dict[str, Any]
DEFAULT_NEW_TOKENS = 128  # SGLang's SamplingParams.max_new_tokens
MOST_RESPONSES = 4096  # of one request; rollouts are limited by server.max_requests only
CHAT_CHARACTERS_PER_TOKEN = 64  # of the longest prompt; about sixteen times those of English
LEAST_CHAT = 1 << 20  # characters that each chat may have; an engine reads them in a second
LARGEST_SEED = (1 << 63) - 1
# Beside Sampling: SGLang's parameters that this module reads, or whose default it takes.
SEED, N = "sampling_seed", "n"
EXPERTS = "return_routed_experts"
NEUTRAL_PARAMETERS: Mapping[str, tuple[Any, ...]] = {
    # SGLang's detokenizer hands it on, and no tokenizer that it decodes with reads it.
    "spaces_between_special_tokens": (True, False),
    "beam_width": (1,),
}
# In `custom_params`: slime's patch of SGLang then returns the ids that top-p kept, for each token
# of one reply of an engine.
TOP_P_IDS = "return_top_p_token_ids"


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The fields of SGLang's `GenerateReqInput` that can cross a chunk boundary, and ours.

    A field of SGLang's that is not here, with a value other than its default, makes the request
    undivided: it passes through.
    """

    text: str | list[str] | None = None
    """Prompt, or a batch of prompts."""
    input_ids: list[int | Ids] | None = None
    """Instead, the token ids of the prompt or prompts."""
    sampling_params: Parameters | list[Parameters] | None = None
    """SGLang's sampling parameters; in a batch, one for all or one for each prompt. `n`: responses
    per prompt. `sampling_seed`: drawn for each response if it is missing."""
    rid: str | list[str] | None = None
    """Name of the request; in a batch, a list or a prefix."""
    stream: bool | None = None
    """Server-sent events, each with the whole response so far."""
    return_logprob: bool | list[bool] | None = None
    """Return the log probability of each response token."""
    return_text_in_logprobs: bool | None = None
    """With the text of each token."""
    image_data: str | list[str | list[str] | None] | None = None
    """Images of the prompt, or in a batch a list with an entry per prompt ([Images](images.md))."""
    group_id: str | int | list[str | int] | None = None
    """Ours: responses with one group id are siblings, which are drafted from one another."""
    group_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Ours: how many responses the group will have in all."""
    return_routed_experts: bool | None = None
    """Return the experts of each token but the last, of prompt and response: base64 of int32. A
    stream with them is undivided."""
    session_id: str | int | None = None
    """Conversation: its next turn prefers the engine that has its KV."""


# Fields that change nothing in the response: they are dropped.
IGNORED = (
    *("log_metrics", "no_logs", "custom_labels", "conversation_id", "received_time"),
    *("external_trace_header", "routing_key", "http_worker_ipc", "background", "modalities"),
)
# Values of other fields that mean the same as none.
NEUTRAL_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "logprob_start_len": (-1,),
    "top_logprobs_num": (0,),
    "routed_experts_start_len": (0,),
}
_decoder = msgspec.json.Decoder(GenerateRequest)


class CallBatch(msgspec.Struct, kw_only=True):
    """A divided request. `single`: the reply is one object, not a list. `logprobs`: per call."""

    calls: list[Call]
    single: bool
    stream: bool
    logprobs: list[bool]
    token_texts: bool
    routed_experts: bool


class GenerateReader:
    """Turns bodies of `/generate` into calls.

    `vocab_size`: the number of token ids; None: unknown. `experts`: whether the engines return
    routed experts. `images`: reads images; None: the engines do not continue responses behind them.
    """

    def __init__(
        self,
        texts: PromptTexts,
        vocab_size: int | None,
        *,
        experts: bool = False,
        images: ImageReader | None = None,
    ) -> None:
        self._texts = texts
        self._longest = texts.longest
        self._vocab_size = vocab_size
        self._experts = experts
        self._images = images

    def read(self, body: bytes, session_id: str | None = None) -> CallBatch:
        """Returns the calls of a body.

        `session_id`: the session named in a header. Raises NotDivisible for a request that must
        pass through, and BadRequest for one that no engine accepts.
        """
        fields = decode_fields(body)
        require_few_ids(fields, self._longest)
        require_neutral(fields, (*GenerateRequest.__struct_fields__, *IGNORED), NEUTRAL_FIELDS)
        try:
            with unreadable_as_refusal("the body"):
                request = _decoder.decode(body)
        except BadRequest as error:
            if isinstance(error.__cause__, msgspec.ValidationError):  # SGLang may read it
                raise NotDivisible(misread(error)) from error
            raise
        return self.batch(request, session_id)

    def batch(self, request: GenerateRequest, session_id: str | None = None) -> CallBatch:
        """Returns the calls of a request. `session_id` and the errors: as in `read`."""
        experts = bool(request.return_routed_experts)
        if experts and (request.stream or not self._experts):
            raise NotDivisible(EXPERTS)
        prompts, single = self._prompts(request)
        parameters = request.sampling_params or {}
        per_prompt = parameters if isinstance(parameters, list) else [parameters] * len(prompts)
        if len(per_prompt) != len(prompts):
            raise NotDivisible("sampling_params")
        n = _samples(per_prompt)
        require_few(len(prompts) * n)
        images = self._read_images(request.image_data, prompts, single)
        single = single and n == 1
        rids = _rids(request.rid, len(prompts), n, single)
        group_ids = [
            _name(group_id) for group_id in _spread("group_id", request.group_id, len(prompts))
        ]
        own_session = _name(request.session_id)
        distinct = {id(params): params for params in per_prompt}  # many prompts may share one
        read = {key: self._sampling(params, experts) for key, params in distinct.items()}
        calls: list[Call] = []
        for number, (prompt, params) in enumerate(zip(prompts, per_prompt, strict=True)):
            found = images[number]
            sampling, seed = read[id(params)]
            sampling = self._limited(sampling, params, len(prompt), found.tokens)
            group_id, size = group_ids[number], request.group_size
            if group_id is None and n > 1:
                group_id, size = f"n/{uuid.uuid4().hex}", n
            calls += [
                Call(
                    rid=rids[number * n + index],
                    prompt_ids=prompt,
                    sampling=sampling,
                    seed=secrets.randbits(63) if seed is None else seed,
                    stream=bool(request.stream),
                    group_id=group_id,
                    group_size=size,
                    session_id=own_session or session_id,
                    images=found,
                )
                for index in range(n)
            ]
        logprobs = _spread("return_logprob", request.return_logprob, len(prompts))
        return CallBatch(
            calls=calls,
            single=single,
            stream=bool(request.stream),
            logprobs=[bool(wanted) for wanted in logprobs for _ in range(n)],
            token_texts=bool(request.return_text_in_logprobs),
            routed_experts=experts,
        )

    def _prompts(self, request: GenerateRequest) -> "tuple[list[array[int]], bool]":
        """Returns the prompts, and whether there is one that is not in a list."""
        if request.text is not None:
            if request.input_ids is not None:
                raise NotDivisible("input_ids")
            single = isinstance(request.text, str)
            prompts = []
            for text in [request.text] if isinstance(request.text, str) else request.text:
                ids = self._texts.ids(text)
                if ids is None:
                    raise NotDivisible("tokenizer")
                prompts.append(ids)
        elif request.input_ids:
            single = not isinstance(request.input_ids[0], list)
            lists = [request.input_ids] if single else request.input_ids
            prompts = [self._ids(ids) for ids in lists]
        else:
            raise NotDivisible("input_ids")
        if not prompts or not all(prompts):
            raise NotDivisible("empty_prompt")
        return prompts, single

    def _read_images(
        self, given: Any, prompts: "Sequence[array[int]]", single: bool
    ) -> Sequence[Images]:
        """Returns the images of each prompt. Raises BadRequest for one that cannot be read, and
        NotDivisible for images that the engines do not continue or that lack a placeholder."""
        if not given:
            return [NO_IMAGES] * len(prompts)
        if self._images is None:
            raise NotDivisible("image_data")
        per_prompt = [given] if single else given
        if not isinstance(per_prompt, list) or len(per_prompt) != len(prompts):
            raise NotDivisible("image_data")
        reader, found = self._images.of_body(MOST_OF_BODY), []
        for prompt, own in zip(prompts, per_prompt, strict=True):
            references = [own] if isinstance(own, str) else own or []
            if not isinstance(references, list) or {*map(type, references)} - {str}:
                raise NotDivisible("image_data")
            if reader.placeholder is None or reader.missing(prompt, len(references)):
                raise NotDivisible("image_data")
            try:
                found.append(reader.read(references))
            except ValueError as error:
                raise BadRequest(str(error)) from error
        return found

    def _ids(self, ids: Any) -> "array[int]":
        if not isinstance(ids, list):
            raise NotDivisible("input_ids")
        highest = LARGEST_ID if self._vocab_size is None else self._vocab_size - 1
        try:
            for token in (min(ids, default=0), max(ids, default=0)):
                if not 0 <= token <= highest:
                    raise BadRequest(f"input_ids: token id {token} is outside the vocabulary")
            return token_array(ids)
        except TypeError as error:  # not all of them are numbers
            raise NotDivisible("input_ids") from error

    def _sampling(self, given: Parameters, experts: bool) -> tuple[Sampling, int | None]:
        """Returns the sampling parameters and the seed of responses to any prompt."""
        params = {name: value for name, value in given.items() if value is not None}
        params.pop(N, None)
        if EXPERTS in params:  # ours; in SGLang it is a field of the request
            raise NotDivisible(EXPERTS)
        for name, neutral in NEUTRAL_PARAMETERS.items():
            value = params.pop(name, neutral[0])
            if not any(type(value) is type(one) and value == one for one in neutral):
                raise NotDivisible(name)
        seed = params.pop(SEED, None)
        if seed is not None and (type(seed) is not int or not 0 <= seed <= LARGEST_SEED):
            raise NotDivisible(SEED)
        unlimited = _is_unlimited(given)
        params.setdefault("max_new_tokens", self._longest if unlimited else DEFAULT_NEW_TOKENS)
        try:
            sampling = msgspec.convert({**params, EXPERTS: experts}, Sampling)
        except msgspec.ValidationError as error:
            raise NotDivisible(_unknown(params) or misread(error)) from error
        for key, _ in invalid_values(params, "sampling"):
            raise NotDivisible(key.removeprefix("sampling").lstrip(".") or "sampling_params")
        for name, _ in (
            *invalid(sampling),
            *undivided(sampling),
            *too_large(sampling),
        ):
            raise NotDivisible(name or "sampling_params")
        if sampling.custom_params.get(TOP_P_IDS):
            raise NotDivisible("custom_params")
        return sampling, seed

    def _limited(
        self, sampling: Sampling, given: Parameters, prompt_len: int, image_tokens: int
    ) -> Sampling:
        """Returns the sampling parameters of a response to one prompt.

        `image_tokens`: about how many tokens images add. Without a limit the response has what they
        really leave, which the engine knows; a guess might end it earlier.
        """
        most = self._longest - prompt_len
        if _is_unlimited(given):
            sampling = msgspec.structs.replace(sampling, max_new_tokens=max(1, most))
            if sampling.min_new_tokens > sampling.max_new_tokens:
                raise NotDivisible("min_new_tokens")
        else:
            most -= image_tokens
        if prompt_len < 1 or sampling.max_new_tokens > most:
            raise NotDivisible("length")  # SGLang decides
        return sampling


def _is_unlimited(given: Parameters) -> bool:
    return "max_new_tokens" in given and given["max_new_tokens"] is None


def require_neutral(
    fields: Mapping[str, msgspec.Raw],
    known: Sequence[str],
    neutral: Mapping[str, tuple[Any, ...]],
) -> None:
    """Raises NotDivisible if a field that is not `known` has a value.

    `neutral`: by field, the values that mean the same as none.
    """
    for name, raw in fields.items():
        if name in known:
            continue
        value = decode(raw, name)
        empty = value is None or value is False or value in ([], {})
        if not empty and value not in neutral.get(name, ()):
            raise NotDivisible(name)


def require_few(responses: int) -> None:
    """Raises BadRequest for more responses in one request than MOST_RESPONSES."""
    if responses > MOST_RESPONSES:
        raise BadRequest(f"{responses} responses in one request; at most {MOST_RESPONSES}")


def require_few_ids(
    fields: Mapping[str, msgspec.Raw], longest: int, name: str = "input_ids"
) -> None:
    """Raises BadRequest for far more token ids than prompts of `longest` tokens have.

    Decoding many million ids takes seconds, and commas are counted in milliseconds. name: of the
    field, which may have texts instead.
    """
    text = bytes(fields.get(name, b""))
    first = text[1:].lstrip()[:1]
    if not text.startswith(b"[") or first == b'"':
        return
    count = text.count(b",") + 1
    prompts = MOST_RESPONSES if first == b"[" else 1
    if count > MOST_EXCESS * longest * prompts:
        raise BadRequest(f"{name}: {count} tokens; the longest prompt has {longest - 1} tokens")


def require_short_chat(messages: Any, longest: int, name: str = "messages") -> None:
    """Raises BadRequest for a chat with far more text than a prompt of `longest` tokens has.

    An engine would render and tokenize it for minutes, in which it answers nobody. A template may
    leave most of a chat out. name: of the field, which may have another value than messages.
    """
    listed = messages if isinstance(messages, list) else ()
    contents = [message.get("content") for message in listed if isinstance(message, dict)]
    texts = [*contents, *(part.get("text") for part in parts_of(messages)), messages]
    count = sum(len(text) for text in texts if isinstance(text, str))
    if count > max(LEAST_CHAT, CHAT_CHARACTERS_PER_TOKEN * longest):
        raise BadRequest(f"{name}: {count} characters; the longest prompt has {longest - 1} tokens")


def _samples(parameters: list[Parameters]) -> int:
    """Returns `n`, which all parameters of a batch have in common."""
    counts = [1 if params.get(N) is None else params[N] for params in parameters]
    n = counts[0]
    if type(n) is not int or n < 1 or any(other != n for other in counts):
        raise NotDivisible(N)
    return n


def _rids(rid: str | list[str] | None, prompts: int, n: int, single: bool) -> list[str]:
    """Returns a name per response, as GenerateReqInput._normalize_rid and the expansion of `n`."""
    if isinstance(rid, list):
        if len(rid) != prompts:
            raise NotDivisible("rid")
        if n == 1:
            return rid
        return [f"{name}_{index}" for name in rid for index in range(n)]
    if rid is None:
        return [uuid.uuid4().hex for _ in range(prompts * n)]
    return [rid] if single else [f"{rid}_{index}" for index in range(prompts * n)]


def _spread(name: str, value: Any, count: int) -> list[Any]:
    """Returns one value of a field per prompt."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise NotDivisible(name)
    return value


def _name(value: str | int | None) -> str | None:
    """Returns the name of a group or session: trainers number theirs."""
    return None if value is None else str(value)


def misread(error: Exception) -> str:
    """Returns the field or parameter that msgspec could not read, as a label."""
    found = re.search(r"at `\$\.(\w+)", str(error))
    return found[1] if found else "body"


def _unknown(params: Parameters) -> str | None:
    """Returns the first parameter that Sampling does not have, as a label."""
    return next((name for name in params if name not in Sampling.__struct_fields__), None)
