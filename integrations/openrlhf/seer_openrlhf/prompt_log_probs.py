"""An engine's log probabilities of given tokens, which show what its weights are."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from .client import Server

Json = dict[str, Any]
GONE = (HTTPStatus.NOT_FOUND, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE)


async def log_probs_of(server: Server, engine: str, ids: Sequence[int]) -> Json:
    """Returns `log_probs` of ids[1:] on one engine; else `message`, and `gone` if it is not there.

    Raises ServerError if the server does not answer.
    """
    body = {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    status, reply = await server.outcome(f"/workers/{engine}/generate", body)
    if status != HTTPStatus.OK:
        error = reply.get("error", reply)
        message = error.get("message", error) if isinstance(error, Mapping) else error
        return {"message": f"HTTP {status}: {message}", "gone": status in GONE}
    _, *rest = reply["meta_info"]["input_token_logprobs"]
    return {"log_probs": [logprob for logprob, *_ in rest]}
