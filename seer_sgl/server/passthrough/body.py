"""What the server itself reads of the body of a `/generate` that passes through. Pure."""

import secrets
import uuid
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from seer_sgl.admission.sglang_crashes import crashing
from seer_sgl.admission.sglang_fields import DROPPED, GenerateFields
from seer_sgl.engine_types import EngineInfo
from seer_sgl.rollout.images import ImageReader
from seer_sgl.server.decode import decode, decode_fields
from seer_sgl.server.errors import BadRequest
from seer_sgl.server.generate_body import DEFAULT_NEW_TOKENS
from seer_sgl.server.json import dumps
from seer_sgl.server.prompt_texts import PromptTexts

from .media import MEDIA, number_of, read_images, require_inline


class PassthroughBody(msgspec.Struct, frozen=True, kw_only=True):
    """A request that passes through. `rids`: SGLang's names of its responses, if they are known.

    `prompts`: the number of tokens of each prompt. `n`: responses per prompt. `single`: the reply
    is one object, not a list. `budget`: the most response tokens in all. `session`: its session of
    SGLang. `media`: it has images or the like.
    """

    body: bytes
    rids: tuple[str, ...]
    prompts: tuple[int, ...]
    n: int
    single: bool
    stream: bool
    logprobs: bool
    budget: int
    session: Any
    media: bool


def passthrough_body(
    body: bytes,
    engines: Sequence[EngineInfo],
    texts: PromptTexts,
    images: ImageReader | None = None,
) -> PassthroughBody:
    """Returns the body to send, with a name and a seed if it has none.

    images: reads images; None: the engines read none. Raises BadRequest for what would crash an
    engine, and for an image that cannot be read.
    """
    fields = decode_fields(body)
    for name in DROPPED:
        fields.pop(name, None)
    given = {name: decode(raw, name) for name, raw in fields.items()}
    for name, value in given.items():
        if name not in GenerateFields.__struct_fields__ and not value:
            del fields[name]
    for name, why in crashing({name: given[name] for name in fields}, engines):
        raise BadRequest(f"{name}: {why}")
    require_inline(given)
    rid, parameters = named(fields, given), given.get("sampling_params") or {}
    session = given.get("session_params")
    if session and session.get("replace") and session.get("rid") is None:
        fields["session_params"] = msgspec.Raw(dumps(_from_the_beginning(session)))
    seeded = any(info.deterministic for info in engines)
    sampling = (
        [_filled(params, seeded) for params in parameters]
        if isinstance(parameters, list)
        else _filled(parameters, seeded)
    )
    if images is not None and given.get("image_data"):
        require_placeholders(given, images, texts)
        read = read_images(given["image_data"], images, is_batch(given))
        fields["image_data"] = msgspec.Raw(dumps(read))
    if sampling != parameters:
        fields["sampling_params"] = msgspec.Raw(dumps(sampling))
    first = parameters[0] if isinstance(parameters, list) else parameters
    text, batch, n = given.get("text"), is_batch(given), first.get("n") or 1
    if text is None:
        ids = given.get("input_ids") or given.get("input_embeds") or []
        prompts = tuple(map(len, ids if batch else [ids]))
    else:
        prompts = texts.lengths("text", text if batch else [text])
    most = first.get("max_new_tokens", DEFAULT_NEW_TOKENS)
    budget = (texts.longest if most is None else most) * n * len(prompts)
    return PassthroughBody(
        body=dumps(fields),
        rids=names_of(rid, len(prompts) if batch else None, n),
        prompts=prompts,
        n=n,
        single=n == 1 and not batch,
        stream=bool(given.get("stream")),
        logprobs=bool(given.get("return_logprob")),
        budget=min(max(1, budget), texts.longest),
        session=session,
        media=any(given.get(name) for name in MEDIA),
    )


def require_placeholders(given: Mapping[str, Any], images: ImageReader, texts: PromptTexts) -> None:
    """Raises BadRequest for a prompt with more placeholders than images, if it has any: SGLang
    0.5.21 never answers it."""
    batch, data = is_batch(given), given["image_data"]
    prompts = given.get("input_ids") if given.get("text") is None else given["text"]
    if not prompts:
        return
    listed = prompts if batch else [prompts]
    own = data if batch and isinstance(data, list) else [data] * len(listed)
    for index, (prompt, image_data) in enumerate(zip(listed, own, strict=False)):
        number = number_of(image_data)
        if not number:
            continue
        ids = texts.ids(prompt) if isinstance(prompt, str) else array("i", prompt)
        missing = 0 if ids is None else images.missing(ids, number)
        if missing > 0:
            raise BadRequest(
                f"image_data: {number} images, but the prompt{f' {index}' if batch else ''} has "
                f"the placeholder {images.placeholder} {number + missing} times"
            )


def named(fields: dict[str, msgspec.Raw], given: Mapping[str, Any]) -> Any:
    """Returns the `rid` of a request, and draws one if it has none. A `session_id` that is a number
    is written as a text: SGLang refuses numbers."""
    if isinstance(given.get("session_id"), int):
        fields["session_id"] = msgspec.Raw(dumps(str(given["session_id"])))
    rid = given.get("rid")
    if rid is None:
        rid = uuid.uuid4().hex
        fields["rid"] = msgspec.Raw(dumps(rid))
    return rid


def names_of(rid: str | list[str], prompts: int | None, n: int) -> tuple[str, ...]:
    """Returns SGLang's names of the responses (`GenerateReqInput._normalize_rid`).

    `prompts`: their number in a batch; None: a single prompt. Empty for several samples per prompt:
    SGLang draws their names.
    """
    if n > 1:
        return ()
    if isinstance(rid, list):
        return tuple(rid)
    return (rid,) if prompts is None else tuple(f"{rid}_{index}" for index in range(prompts))


def is_batch(given: Mapping[str, Any]) -> bool:
    """Returns whether a request has a list of prompts, as SGLang's `_determine_batch_size`."""
    if given.get("text") is not None:
        return isinstance(given["text"], list)
    if given.get("input_ids") is not None:
        return isinstance(_first(given["input_ids"]), list)
    return isinstance(_first(_first(given.get("input_embeds"))), list)


def _from_the_beginning(session: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a turn that begins its session anew, in a form that SGLang bears.

    It fails while it forgets the turns before (`Session.create_req`: it deletes from the dict that
    it iterates over). A turn that continues none has the same tokens; a streaming session refuses
    both forms.
    """
    return {"id": session.get("id"), "drop_previous_output": True}


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, list) and values else None


def _filled(params: Mapping[str, Any], seeded: bool) -> dict[str, Any]:
    """Returns sampling parameters without an `n` of null, which SGLang compares with 1.

    `seeded`: they get a seed, for a deterministic SGLang gives all requests without one the same.
    """
    filled = {name: value for name, value in params.items() if name != "n" or value is not None}
    if seeded and filled.get("sampling_seed") is None:
        filled["sampling_seed"] = secrets.randbits(31)
    return filled
