"""Passes requests on OpenAI's paths through."""

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from aiohttp import web

from seer_sgl.admission.grammars import schema_risk
from seer_sgl.admission.sglang_crashes import crashing
from seer_sgl.admission.sglang_fields import INTERNAL, GenerateFields, SamplingFields
from seer_sgl.rollout.images import ImageReader
from seer_sgl.rollout.message_parts import with_data_urls
from seer_sgl.server.decode import decode, decode_fields
from seer_sgl.server.errors import BadRequest
from seer_sgl.server.generate_body import require_few, require_short_chat
from seer_sgl.server.json import dumps
from seer_sgl.server.service import THREAD_BYTES, Service

from .body import named, names_of
from .media import require_inline

BYTES_PER_TOKEN = 4  # about, of a prompt that is not tokenized here
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
# Fields with another name than SGLang's sampling parameter; the last one given counts.
RENAMED = {
    **dict.fromkeys(reversed(LIMITS), "max_new_tokens"),
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "stop_sequences": "stop",
}
# Fields of `/generate` that have another meaning on other paths, or are made of others here.
OTHERS = ("text", "input_ids", "input_embeds", "sampling_params", "return_logprob")
SPACES = "spaces_between_special_tokens"  # SGLang takes it from the variables of a chat template
COMPLETIONS, MESSAGES, RESPONSES = "/v1/completions", "/v1/messages", "/v1/responses"
CHATS = ("/v1/chat/completions", "/invocations")
# Their prompts are texts or token ids in `input`; those of ENCODED are like those of `/generate`.
EMBEDDED, ENCODED = ("/v1/embeddings", "/v1/classify"), ("/encode", "/classify")
# Fields of which SGLang makes one prompt.
CHAT_FIELDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(CHATS, ("messages",)),
    MESSAGES: ("system", "messages"),
    RESPONSES: ("instructions", "input"),
}
# Fields of other paths that SGLang does not read on one: they must not hide those that it reads.
_NOT_OF_CHATS = ("prompt", "max_output_tokens", "stop_sequences")
UNREAD: Mapping[str, tuple[str, ...]] = {
    COMPLETIONS: (
        *("input_ids", "top_logprobs", "stop_sequences"),
        *("max_completion_tokens", "max_output_tokens"),
    ),
    **dict.fromkeys(CHATS, _NOT_OF_CHATS),
    MESSAGES: (
        *("prompt", "input_ids", "stop", "logprobs", "top_logprobs"),
        *("max_completion_tokens", "max_output_tokens"),
    ),
    RESPONSES: (
        *("prompt", "input_ids", "rid", "stop_sequences", "logprobs"),
        *("max_completion_tokens", "max_tokens"),
    ),
    **dict.fromkeys(EMBEDDED, ("prompt", "input_ids")),
    **dict.fromkeys(ENCODED, ("prompt",)),
}


async def send_openai(
    service: Service,
    http: web.Request,
    body: bytes,
    reason: str,
    prompt_len: int | None = None,
) -> web.StreamResponse:
    """Sends a completion or chat with a name and a seed if it has none; returns the answer.

    `prompt_len`: in tokens; None: unknown. Raises HttpError.
    """
    fields, given = await service.in_thread_if_long(len(body), _read, service, body, http.path)
    images = service.rollout.images if service.infos()[0].reads_images else None
    if images is not None and isinstance(given.get("messages"), list):
        fields["messages"] = await _with_images(service, given["messages"], images)
    if prompt_len == 0:
        raise BadRequest("messages: empty prompt")
    if prompt_len is None and reason != "completion_template":
        prompt_len = await _prompt_len(service, given.get("prompt"), len(body))
    rid, n, prompts = named(fields, given), given.get("n") or 1, _batch(given.get("prompt"))
    if given.get("seed") is None and any(info.deterministic for info in service.infos()):
        # A deterministic SGLang gives all requests without a seed the same one.
        fields["seed"] = msgspec.Raw(dumps(secrets.randbits(31)))
    require_few((prompts or 1) * n)
    tokens = tokens_of(given, len(body), service.longest(), prompt_len)
    return await service.pass_through(
        http, dumps(fields), reason, tokens=tokens, rids=names_of(rid, prompts, n)
    )


def _read(
    service: Service, body: bytes, path: str
) -> tuple[dict[str, msgspec.Raw], dict[str, Any]]:
    """Returns the fields of a body, and the values of those that SGLang reads. Raises
    BadRequest."""
    fields = decode_fields(body)
    given = read_at(path, {name: decode(raw, name) for name, raw in fields.items()})
    refuse_crashing(service, path, given)
    require_inline(given)
    return fields, given


async def _with_images(service: Service, messages: list[Any], images: ImageReader) -> msgspec.Raw:
    """Returns the messages of a chat, whose images are read as the config allows it. Raises
    BadRequest."""
    try:
        read = await service.in_thread_if_long(
            THREAD_BYTES, with_data_urls, messages, images.of_body()
        )
    except ValueError as error:
        raise BadRequest(f"messages: {error}") from error
    return msgspec.Raw(dumps(read))


def tokens_of(
    fields: Mapping[str, Any], size: int, longest: int, prompt_len: int | None = None
) -> tuple[int, int]:
    """Returns about how many tokens prompt and responses have, for the KV ledger.

    `fields`: of the decoded body. `size`: of the body in bytes.
    """
    ids = fields.get("input_ids") or fields.get("prompt")
    if prompt_len is None and isinstance(ids, list) and ids and isinstance(ids[0], int):
        prompt_len = len(ids)
    prompt_len = min(size // BYTES_PER_TOKEN if prompt_len is None else prompt_len, longest)
    limit = next((fields[name] for name in LIMITS if isinstance(fields.get(name), int)), None)
    n = fields.get("n")
    budget = (longest - prompt_len if limit is None else limit) * (n if isinstance(n, int) else 1)
    return max(1, prompt_len), min(max(1, budget), longest)


def _batch(prompt: Any) -> int | None:
    """Returns the number of prompts of a completion; None if there is no list of prompts."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        return len(prompt)
    return None


async def _prompt_len(service: Service, prompt: Any, size: int) -> int | None:
    """Returns the tokens of the text of a completion, or of its texts; None if it has none.

    `size`: of the body in bytes. Raises BadRequest for a text that would crash an engine.
    """
    texts = [
        text for text in (prompt if isinstance(prompt, list) else [prompt]) if isinstance(text, str)
    ]
    if not texts or service.tokenizer is None:
        return None
    read = service.texts().lengths
    return sum(await service.in_thread_if_long(size, read, "prompt", texts))


def read_at(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a decoded body that SGLang reads at a path."""
    unread = UNREAD.get(path, ())
    return {name: value for name, value in given.items() if name not in unread}


def refuse_crashing(service: Service, path: str, given: dict[str, Any]) -> None:
    """Raises BadRequest for a decoded body that would crash an engine, or hold it for minutes.
    SGLang makes a request of `/generate` of it, in which most fields keep their name.

    `given`: the fields that SGLang reads at the path.
    """
    for name in CHAT_FIELDS.get(path, ()):
        require_short_chat(given.get(name), service.longest(), name)
    own = dict.fromkeys((*GenerateFields.__struct_fields__, *INTERNAL))
    fields = {name: given[name] for name in own if name in given and name not in OTHERS}
    params = {name: given[name] for name in SamplingFields.__struct_fields__ if name in given}
    for name, sglang in RENAMED.items():
        if given.get(name) is not None:
            params[sglang] = given[name]
    variables = given.get("chat_template_kwargs")
    if path in CHATS and isinstance(variables, dict) and SPACES in variables:
        params[SPACES] = variables[SPACES]
    if path == RESPONSES and "request_id" in given:
        fields["rid"] = given["request_id"]
    likeliest, logprobs = given.get("top_logprobs"), given.get("logprobs")
    if likeliest is None and not isinstance(logprobs, bool):
        likeliest = logprobs  # of a completion: their number
    if path in EMBEDDED:
        given = {**given, "prompt": _ids_or_texts(given.get("input"))}
    fields |= _prompt(given) | {"sampling_params": params, "return_logprob": bool(logprobs)}
    if path in ENCODED:
        fields["text"] = _ids_or_texts(given.get("text"), pairs=True)
        fields["sampling_params"] = given.get("sampling_params")
    if likeliest is not None:
        fields["top_logprobs_num"] = likeliest
    for name, why in crashing(fields, service.infos()):
        raise BadRequest(f"{_given_name(name, path, given)}: {why}")
    for name, schemas in _schemas(given):
        risk = schema_risk(schemas)
        if risk is not None:
            raise BadRequest(f"{name}: {risk}")


def _schemas(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the fields of which SGLang makes grammars."""
    for name in ("response_format", "tools"):
        yield name, given.get(name)
    if isinstance(given.get("text"), dict):  # of a response; on other paths, prompts
        yield "text", given["text"]
    messages = given.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            yield "messages: tools", message.get("tools")


def _prompt(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the prompt by SGLang's name; of a chat, the ids that it may have instead."""
    prompt = given.get("prompt")
    if prompt is None:
        ids = given.get("input_ids")
        return {} if ids is None else {"input_ids": ids}
    first = prompt[0] if isinstance(prompt, list) and prompt else prompt
    return {"text" if isinstance(first, str) else "input_ids": prompt}


def _ids_or_texts(given: Any, *, pairs: bool = False) -> Any:
    """Returns inputs to embed; with a text in place of each that is neither a text nor token ids.

    pairs: a list in it has two texts.
    """
    first = given[0] if isinstance(given, list) and given else None
    if isinstance(first, dict) or (pairs and isinstance(first, list)):
        return [""] * len(given) if pairs or len(given) > 1 else ""
    return given


def _given_name(sglang: str, path: str, given: dict[str, Any]) -> str:
    """Returns the name that the client has given to a field of SGLang."""
    if sglang == "input_ids" and path in EMBEDDED:
        return "input"
    if sglang == "input_ids" and "input_ids" not in given:
        return "prompt"
    logprobs = "top_logprobs" if given.get("top_logprobs") is not None else "logprobs"
    names = {"text": "prompt", "top_logprobs_num": logprobs}
    if path == RESPONSES:
        names["rid"] = "request_id"
    names |= {theirs: name for name, theirs in RENAMED.items() if name in given}
    return names.get(sglang, sglang)
