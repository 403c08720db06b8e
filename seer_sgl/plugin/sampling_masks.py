"""Sampling masks of a batch in which some requests have none."""

from __future__ import annotations

from .hook import TOKENIZER_MANAGER, Hook
from .sglang_types import SglBatchOutput


def hooks() -> list[Hook]:
    return [
        Hook(
            f"{TOKENIZER_MANAGER}._handle_batch_output",
            fill_masks,
            "before",
            "SGLang forgets that a request of an unknown session has asked for sampling masks, and "
            "fails at its answer if another request of the batch has some.",
            "SGLang answers a request that has no sampling masks beside one that has.",
        ),
    ]


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
