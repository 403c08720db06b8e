"""Requests of one batch that SGLang reads together: what one of them has must not fail all.

SGLang's scheduler and the process that answers its clients end at any error, and with them the
server for all clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .hook import TOKENIZER_MANAGER, Hook
from .sglang_types import SglBatchOutput

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
        Hook(
            f"{TOKENIZER_MANAGER}._handle_batch_output",
            fill_masks,
            "before",
            "SGLang forgets that a request of an unknown session has asked for sampling masks, and "
            "fails at its answer if another request of the batch has some.",
            "SGLang answers a request that has no sampling masks beside one that has.",
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


def fill_masks(_manager: object, recv_obj: SglBatchOutput) -> None:
    """Hook before `TokenizerManager._handle_batch_output`: gives requests without sampling masks
    empty ones, if a request of the batch has some."""
    masks = getattr(recv_obj, "output_token_sampling_mask", None)  # no masks of embeddings
    if not masks or all(mask is not None for mask in masks):
        return
    from sglang.srt.sampling.sampling_mask import SamplingMaskRows

    recv_obj.output_token_sampling_mask = [
        SamplingMaskRows().take() if mask is None else mask for mask in masks
    ]
