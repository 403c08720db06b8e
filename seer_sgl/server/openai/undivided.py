"""Sends requests on OpenAI's paths to an engine as they are."""

import secrets
import uuid
from typing import Any

import msgspec
from aiohttp import web

from .. import harmful
from ..decode import decode, decode_fields
from ..errors import BadRequest
from ..forward_body import names_of, text_lengths
from ..generate_body import require_few
from ..json import dumps
from ..service import Service

BYTES_PER_TOKEN = 4  # about, of a prompt that is not tokenized here
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
# The fields that the server itself reads.
READ = (
    *(*LIMITS, "rid", "seed", "n", "prompt", "input_ids", "logprobs", "top_logprobs"),
    *("min_p", "top_k", "min_tokens", "stop_token_ids", "stop_regex", "logit_bias"),
)


async def send_undivided(
    service: Service,
    http: web.Request,
    body: bytes,
    reason: str,
    prompt_len: int | None = None,
) -> web.StreamResponse:
    """Sends a completion or chat with a name and a seed if it has none; returns the answer.

    `prompt_len`: in tokens; None: unknown. Raises HttpError.
    """
    fields = decode_fields(body)
    known = {name: decode(fields[name], name) if name in fields else None for name in READ}
    harmful.require_harmless(_of_sglang(known), service.infos())
    if prompt_len == 0:
        raise BadRequest("messages: a prompt without tokens")
    if prompt_len is None and reason != "completion_template":
        prompt_len = await _prompt_len(service, known["prompt"], len(body))
    if known["rid"] is None:
        known["rid"] = uuid.uuid4().hex
        fields["rid"] = msgspec.Raw(dumps(known["rid"]))
    if known["seed"] is None and any(info.deterministic for info in service.infos()):
        # A deterministic SGLang gives all requests without a seed the same one.
        fields["seed"] = msgspec.Raw(dumps(secrets.randbits(31)))
    n = known["n"] if type(known["n"]) is int else 1
    prompts = _batch(known["prompt"])
    require_few((prompts or 1) * n, service.settings.max_batch)
    names = names_of(known["rid"], prompts, n)
    tokens = tokens_of(known, len(body), service.longest(), prompt_len)
    return await service.forward(http, dumps(fields), reason, tokens=tokens, rids=names)


def tokens_of(
    known: dict[str, Any], size: int, longest: int, prompt_len: int | None = None
) -> tuple[int, int]:
    """Returns about how many tokens prompt and responses have, for the KV ledger.

    `known`: the fields of READ that there are. `size`: of the body in bytes.
    """
    ids = known.get("input_ids") or known.get("prompt")
    if prompt_len is None and isinstance(ids, list) and ids and isinstance(ids[0], int):
        prompt_len = len(ids)
    prompt_len = min(size // BYTES_PER_TOKEN if prompt_len is None else prompt_len, longest)
    limit = next((known[name] for name in LIMITS if isinstance(known.get(name), int)), None)
    n = known.get("n")
    budget = (longest - prompt_len if limit is None else limit) * (n if isinstance(n, int) else 1)
    return max(1, prompt_len), min(max(1, budget), longest)


def _batch(prompt: Any) -> int | None:
    """Returns the number of prompts of a completion; None if there is no list of prompts."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        return len(prompt)
    return None


async def _prompt_len(service: Service, prompt: Any, size: int) -> int | None:
    """Returns the tokens of the text of a completion, or of its texts; None if it has none.

    `size`: of the body in bytes. Raises BadRequest for a text that would end an engine.
    """
    texts = [
        each for each in (prompt if isinstance(prompt, list) else [prompt]) if isinstance(each, str)
    ]
    if not texts or service.tokenizer is None:
        return None
    encode, longest = service.tokenizer.encode, service.longest()
    return sum(await service.worked(size, text_lengths, "prompt", texts, encode, longest))


def _of_sglang(known: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields by the names of `/generate`, for those that may end an engine."""
    prompt, likeliest = known["prompt"], known["top_logprobs"]
    if likeliest is None and not isinstance(known["logprobs"], bool):
        likeliest = known["logprobs"]  # of a completion: their number
    tokens = prompt if isinstance(prompt, list) else known["input_ids"]
    return dict.fromkeys(harmful.READ) | {
        "input_ids": tokens,
        "sampling_params": known | {"min_new_tokens": known["min_tokens"]},
        "return_logprob": bool(known["logprobs"]),
        "top_logprobs_num": likeliest,
    }
