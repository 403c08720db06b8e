"""The body of a `/generate` that is sent as it is: what the server itself reads of it. Pure."""

import secrets
import uuid
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from seer_sgl.types import EngineInfo

from .decode import decode, decode_fields
from .errors import BadRequest
from .generate_body import DEFAULT_NEW_TOKENS, require_possible
from .harmful import READ, require_harmless
from .json import dumps

OWN = ("rid", "input_embeds", "session_params")  # of the fields; beside the ones that may do harm


class Whole(msgspec.Struct, frozen=True):
    """A request that is sent as it is. `rids`: the names that abort it.

    `prompts`: the number of tokens of each prompt. `budget`: the most response tokens in all.
    `session`: its session of SGLang.
    """

    body: bytes
    rids: tuple[str, ...]
    prompts: tuple[int, ...]
    budget: int
    session: Any


def whole(
    body: bytes,
    engines: Sequence[EngineInfo],
    encode: "Callable[[str], array[int]] | None",
    longest: int,
) -> Whole:
    """Returns the body to send, with a name and a seed if it has none.

    encode: returns the ids of a text; None: no tokenizer. `longest`: the most tokens of prompt and
    response together. Raises BadRequest for what would end an engine.
    """
    fields = decode_fields(body)
    known = {name: decode(fields[name], name) if name in fields else None for name in (*OWN, *READ)}
    require_harmless(known, engines)
    if known["rid"] is None:
        known["rid"] = uuid.uuid4().hex
        fields["rid"] = msgspec.Raw(dumps(known["rid"]))
    if any(info.deterministic for info in engines):
        seeded = _seeded(known["sampling_params"])
        if seeded is not None:
            fields["sampling_params"] = msgspec.Raw(dumps(seeded))
    rid = known["rid"]
    rids = rid if isinstance(rid, list) else [rid]
    prompts = _prompts(known, encode, longest)
    return Whole(
        dumps(fields),
        tuple(name for name in rids if isinstance(name, str)),
        prompts,
        _budget(known["sampling_params"], len(prompts), longest),
        known["session_params"],
    )


def _seeded(parameters: Any) -> Any:
    """Returns sampling parameters with a seed each; None if they have seeds or are unusual.

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
    lengths = []
    for each in text if isinstance(text, list) else [text]:
        if isinstance(each, str):
            require_possible(each, longest)
            length = len(each) if encode is None else len(encode(each))
            if each and not length:
                raise BadRequest("text: a prompt without tokens")  # it would end an engine
            lengths.append(length)
        else:
            lengths.append(1)
    return tuple(lengths)


def _budget(parameters: Any, prompts: int, longest: int) -> int:
    """Returns the most response tokens, at most `longest`."""
    params = parameters[0] if isinstance(parameters, list) and parameters else parameters
    params = params if isinstance(params, dict) else {}
    budget, n = params.get("max_new_tokens", DEFAULT_NEW_TOKENS), params.get("n")
    budget = budget if isinstance(budget, int) else longest
    count = max(1, prompts) * (n if isinstance(n, int) else 1)
    return min(max(1, budget * max(1, count)), longest)
