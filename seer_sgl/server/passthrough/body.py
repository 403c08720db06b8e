"""What the server itself reads of the body of a `/generate` that passes through. Pure."""

import secrets
import uuid
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from seer_sgl.admission.sglang_crashes import crashing
from seer_sgl.admission.sglang_fields import DROPPED, GenerateFields
from seer_sgl.types import EngineInfo

from ..decode import decode, decode_fields
from ..errors import BadRequest
from ..generate_body import DEFAULT_NEW_TOKENS, encoded, require_possible
from ..json import dumps

# Fields that this module reads; a missing one is None.
READ = (
    *("text", "input_ids", "input_embeds", "sampling_params", "rid", "stream"),
    *("return_logprob", "session_params"),
)


class PassthroughBody(msgspec.Struct, frozen=True, kw_only=True):
    """A request that passes through. `rids`: SGLang's names of its responses, if they are known.

    `prompts`: the number of tokens of each prompt. `n`: responses per prompt. `single`: the reply
    is one object, not a list. `budget`: the most response tokens in all. `session`: its session of
    SGLang.
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


def passthrough_body(
    body: bytes,
    engines: Sequence[EngineInfo],
    encode: "Callable[[str], array[int]] | None",
    longest: int,
) -> PassthroughBody:
    """Returns the body to send, with a name and a seed if it has none.

    encode: returns the ids of a text; None: no tokenizer. `longest`: the most tokens of prompt and
    response together. Raises BadRequest for what would crash an engine.
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
    known = {name: given.get(name) for name in READ}
    if known["rid"] is None:
        known["rid"] = uuid.uuid4().hex
        fields["rid"] = msgspec.Raw(dumps(known["rid"]))
    sampling = _without_null_n(known["sampling_params"])
    if any(info.deterministic for info in engines):
        sampling = _seeded(sampling) or sampling
    if sampling != known["sampling_params"]:
        fields["sampling_params"] = msgspec.Raw(dumps(sampling))
    prompts = _prompts(known, encode, longest)
    n = _samples(known["sampling_params"])
    return PassthroughBody(
        body=dumps(fields),
        rids=names_of(known["rid"], len(prompts) if is_batch(known) else None, n),
        prompts=prompts,
        n=n,
        single=n == 1 and not is_batch(known),
        stream=bool(known["stream"]),
        logprobs=bool(known["return_logprob"]),
        budget=_budget(known["sampling_params"], n * len(prompts), longest),
        session=known["session_params"],
    )


def names_of(rid: Any, prompts: int | None, n: int) -> tuple[str, ...]:
    """Returns SGLang's names of the responses (`GenerateReqInput._normalize_rid`).

    `prompts`: their number in a batch; None: a single prompt. Empty for several samples per prompt:
    SGLang draws their names.
    """
    if n > 1:
        return ()
    if isinstance(rid, str) and prompts is not None:
        return tuple(f"{rid}_{index}" for index in range(prompts))
    return tuple(name for name in (rid if isinstance(rid, list) else [rid]) if type(name) is str)


def is_batch(known: dict[str, Any]) -> bool:
    """Returns whether a request has a list of prompts, as SGLang's `_determine_batch_size`."""
    if known["text"] is not None:
        return isinstance(known["text"], list)
    if known["input_ids"] is not None:
        return isinstance(_first(known["input_ids"]), list)
    return isinstance(_first(_first(known["input_embeds"])), list)


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, list) and values else None


def _samples(parameters: Any) -> int:
    """Returns `n`, the number of responses per prompt."""
    params = _first(parameters) if isinstance(parameters, list) else parameters
    n = params.get("n") if isinstance(params, dict) else None
    return max(1, n) if type(n) is int else 1


def _without_null_n(parameters: Any) -> Any:
    """Returns sampling parameters without an `n` of null, which SGLang compares with 1."""
    if isinstance(parameters, list):
        return [_without_null_n(params) for params in parameters]
    if isinstance(parameters, dict) and "n" in parameters and parameters["n"] is None:
        return {name: value for name, value in parameters.items() if name != "n"}
    return parameters


def _seeded(parameters: Any) -> Any:
    """Returns sampling parameters with a seed each; None if they have seeds or are none.

    A deterministic SGLang gives all requests without a seed the same one.
    """
    if isinstance(parameters, list):
        each = [_seeded(params) or params for params in parameters]
        return None if each == parameters else each
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict) or parameters.get("sampling_seed") is not None:
        return None
    return {**parameters, "sampling_seed": secrets.randbits(31)}


def _prompts(
    known: dict[str, Any], encode: "Callable[[str], array[int]] | None", longest: int
) -> tuple[int, ...]:
    """Returns the tokens of each prompt, as far as the server can read it."""
    text = known["text"]
    if text is None:
        ids = known["input_ids"] or known["input_embeds"] or []
        if not isinstance(ids, list) or not any(isinstance(each, list) for each in ids):
            ids = [ids]
        return tuple(len(each) if isinstance(each, list) else 1 for each in ids)
    return text_lengths("text", text, encode, longest)


def text_lengths(
    name: str, text: Any, encode: "Callable[[str], array[int]] | None", longest: int
) -> tuple[int, ...]:
    """Returns the tokens of the text, or of each text of a list; 1 for what is no text.

    `name`: the field that has them. Raises BadRequest for a text that is too long or has no token:
    it would end an engine. SGLang itself refuses an empty text.
    """
    lengths = []
    for each in text if isinstance(text, list) else [text]:
        length = 1
        if isinstance(each, str):
            require_possible(each, longest, name)
            length = len(each) if encode is None else len(encoded(each, encode, longest, name))
            if each and not length:
                raise BadRequest(f"{name}: a prompt without tokens")
        lengths.append(length)
    return tuple(lengths)


def _budget(parameters: Any, responses: int, longest: int) -> int:
    """Returns the most response tokens, at most `longest`."""
    params = _first(parameters) if isinstance(parameters, list) else parameters
    params = params if isinstance(params, dict) else {}
    budget = params.get("max_new_tokens", DEFAULT_NEW_TOKENS)
    budget = budget if isinstance(budget, int) else longest
    return min(max(1, budget * max(1, responses)), longest)
