"""Requests of one batch that SGLang reads together: what one of them has must not fail all.

SGLang's scheduler and the process that answers its clients end at any error, and with them the
server for all clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .hook import Hook

if TYPE_CHECKING:
    import torch


def hooks() -> list[Hook]:
    return [
        Hook(
            "sglang.srt.layers.sampler.Sampler._preprocess_logits",
            leave_a_token,
            "after",
            "A grammar that allows only stop tokens and `min_new_tokens` exclude every token of a "
            "row, and SGLang fails to draw from a batch in which another request filters.",
            "SGLang draws a token for a row without any.",
        ),
    ]


def leave_a_token(
    result: torch.Tensor, _sampler: object, logits: torch.Tensor, *_: object, **__: object
) -> torch.Tensor:
    """Hook after `Sampler._preprocess_logits`: allows token 0 in a row of a batch that allows none.

    Its grammar then refuses the token, and SGLang ends that request alone. logits: [rows,
    vocabulary].
    """
    if logits.numel():
        excluded = logits.amax(dim=-1, keepdim=True) == -float("inf")
        logits[:, :1].masked_fill_(excluded, 0.0)
    return result
