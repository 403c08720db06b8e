"""SGLang's reply to a request that is aborted before an engine has it (`_handle_abort_req`)."""

import uuid
from typing import Any

from .passthrough.body import PassthroughBody

FINISH = {"type": "abort", "message": "Abort in waiting queue"}


def aborted_replies(sent: PassthroughBody, version: str) -> list[dict[str, Any]]:
    """Returns a reply without tokens for each response. `version`: of the weights."""
    lengths = [length for length in sent.prompts for _ in range(sent.n)]
    names = sent.rids if len(sent.rids) == len(lengths) else [uuid.uuid4().hex for _ in lengths]
    replies = []
    for name, length in zip(names, lengths, strict=True):
        meta: dict[str, Any] = {
            "id": name,
            "finish_reason": FINISH,
            "prompt_tokens": length,
            "completion_tokens": 0,
            "cached_tokens": 0,
            "weight_version": version,
        }
        if sent.logprobs:
            meta |= {"input_token_logprobs": [], "output_token_logprobs": []}
        replies.append({"text": "", "output_ids": [], "meta_info": meta})
    return replies
