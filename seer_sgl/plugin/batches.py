"""What one request has must not fail all: SGLang reads the requests of a batch together.

SGLang's scheduler and the process that answers its clients end at any error, and with them the
server for all clients.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .hook import REQ, TOKENIZER_MANAGER, Hook
from .sglang_types import (
    SglGenerateReq,
    SglImages,
    SglPrefillAdder,
    SglReq,
    SglSamplingInfo,
    SglTokenizerManager,
)

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
            "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req",
            keep_embeds_apart,
            "around",
            "SGLang prefills requests with and without `input_embeds` in one batch, whose model "
            "gets the embeddings of the first kind alone, and fails.",
            "SGLang prefills such requests apart.",
        ),
        Hook(
            f"{TOKENIZER_MANAGER}._validate_one_request",
            check_embeds,
            "before",
            "SGLang gives the model embeddings of any width, and of bfloat16 to one of another "
            "type; both fail in the scheduler.",
            "SGLang refuses embeddings that its model cannot read.",
        ),
        Hook(
            f"{REQ}.extend_image_inputs",
            forget_images,
            "around",
            "SGLang gives a turn that its session refuses the images of the turn, although it has "
            "put a prompt of one token in place of the turn's own, and fails.",
            "SGLang leaves the images of a refused turn out.",
        ),
    ]


def leave_a_token(
    result: torch.Tensor, _sampler: object, logits: torch.Tensor, sampling_info: SglSamplingInfo
) -> torch.Tensor:
    """Hook after `Sampler._preprocess_logits`: allows token 0 in a row of a batch that allows none.

    Its grammar then refuses the token, and SGLang ends that request alone. Only the penalty of
    `min_new_tokens` excludes the last tokens of a row. logits: [rows, vocabulary].
    """
    penalties = sampling_info.penalizer_orchestrator  # None in a step that overlaps another
    penalized = sampling_info.acc_additive_penalties is not None
    if logits.numel() and (penalized or (penalties and penalties.is_required)):
        excluded = logits.amax(dim=-1, keepdim=True) == -float("inf")
        logits[:, :1].masked_fill_(excluded, 0.0)
    return result


def keep_embeds_apart(
    stock: Callable[..., Any],
    adder: SglPrefillAdder,
    req: SglReq,
    *arguments: object,
    **options: object,
) -> Any:
    """Hook around `PrefillAdder.add_one_req`: leaves a request to a later batch than those of the
    other kind."""
    others = adder.can_run_list
    if others and (others[0].input_embeds is None) != (req.input_embeds is None):
        from sglang.srt.managers.schedule_policy import AddReqResult

        return AddReqResult.OTHER
    return stock(adder, req, *arguments, **options)


def check_embeds(
    manager: SglTokenizerManager, obj: SglGenerateReq, *_: object, **__: object
) -> None:
    """Hook before `TokenizerManager._validate_one_request`. Raises ValueError, for which SGLang
    answers with 400."""
    embeds = obj.input_embeds
    if embeds is None:
        return
    config = manager.model_config
    kind, width = str(config.dtype).removeprefix("torch."), config.hidden_size
    if kind != "bfloat16":
        raise ValueError(f"input_embeds: SGLang makes them bfloat16; the model has {kind}")
    if any(len(row) != width for row in embeds):
        raise ValueError(f"input_embeds: must have {width} values each, as those of the model")


def forget_images(stock: Callable[..., None], req: SglReq, image_inputs: SglImages) -> None:
    """Hook around `Req.extend_image_inputs`: leaves the images of a refused turn out.

    Its prompt has one token by now, for which SGLang may have put that of an image.
    """
    if req.to_finish is None:
        stock(req, image_inputs)
        return
    image_inputs.release_features()
    req.origin_input_ids = array("q", [0])
