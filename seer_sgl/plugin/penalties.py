"""Penalties that count every token of the response before the next one is drawn.

SGLang counts a token for its penalties while it prepares the next step. With overlapped scheduling
the newest token is not on the host yet, so SGLang counts the previous token; for the first step,
the last token of the prompt. The delay depends on the scheduler's other work, so one request gets
different logits in different batches. The hooks count when the step runs, and wait for the tokens
of the step before if a penalty depends on them. Its result is not processed earlier than in stock
SGLang: a request that ends there would be cached with a token whose KV is not yet computed.

`min_new_tokens` is one of SGLang's penalties. An engine that drafts applies it per token
(speculation/minimum.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from seer_sgl.link.contract import ALGORITHM

from .hook import SAMPLING, SCHEDULER, Hook
from .sglang_types import (
    SglFrequencyPenalty,
    SglMinNewTokens,
    SglPresencePenalty,
    SglRepetitionPenalty,
    SglReq,
    SglSamplingInfo,
    SglScheduleBatch,
    SglScheduler,
)

if TYPE_CHECKING:
    import torch

MINIMUM = "BatchedMinNewTokensPenalizer"


def hooks() -> list[Hook]:
    return [
        Hook(
            "sglang.srt.managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens",
            count_later,
            "around",
            "SGLang counts tokens for penalties while it prepares a step, when the newest token is "
            "still missing; the count is delayed until the step runs.",
            "SGLang counts penalties from tokens on the device.",
        ),
        Hook(
            f"{SCHEDULER}.run_batch",
            count_now,
            "before",
            "SGLang starts the step here; if penalties depend on the last one's tokens, it waits "
            "for them. The delayed count is done now.",
            "SGLang counts penalties from tokens on the device.",
        ),
        Hook(
            f"{SAMPLING}.from_schedule_batch",
            remember_output,
            "after",
            "SGLang resets the penalties of a retracted request; the tokens that it has already "
            "generated are counted again.",
            "SGLang keeps the penalties of a retracted request.",
        ),
        Hook(
            f"{SAMPLING}.copy_for_forward",
            without_minimum,
            "around",
            "SGLang counts steps for `min_new_tokens`, among the penalties that need a plain step; "
            "an engine that drafts applies it per token of a step.",
            "SGLang applies `min_new_tokens` by position.",
        ),
    ]


def count_later(stock: Callable[[SglScheduleBatch], None], batch: SglScheduleBatch) -> None:
    """Hook around `ScheduleBatch.cumulate_penalty_output_tokens`: delays the count.

    SGLang calls it before the last step's tokens are on the host. A step of SGLang's mixed chunks
    is prepared in one batch and runs in another: there SGLang's own count stays.
    """
    from sglang.srt.runtime_context import get_schedule

    if get_schedule().enable_mixed_chunk:
        stock(batch)
    else:
        batch.seer_count = stock


def count_now(scheduler: SglScheduler, batch: SglScheduleBatch, *_: object, **__: object) -> None:
    """Hook before `Scheduler.run_batch`: does the delayed count.

    SGLang counts the last token in `output_ids`, so those that it has not booked yet are lent.
    """
    count, batch.seer_count = getattr(batch, "seer_count", None), None
    if count is None:
        return
    late = list(_unbooked(scheduler)) if _by_token(batch) else []
    for req, token in late:
        req.output_ids.append(token)
    try:
        count(batch)
    finally:
        for req, _token in late:
            req.output_ids.pop()


def _unbooked(scheduler: SglScheduler) -> Iterator[tuple[SglReq, int]]:
    """Waits for the last step and yields its requests' tokens, if SGLang has not processed it.

    A step with drafts has several tokens per row. Rows with penalties are never in one.
    """
    for last, result in getattr(scheduler, "result_queue", ()):
        if last.reqs:  # not an idle step beside other data-parallel ranks
            result.copy_done.synchronize()
            tokens = result.next_token_ids.tolist()
            yield from zip(last.reqs, tokens[:: len(tokens) // len(last.reqs)], strict=True)


def remember_output(
    result: SglSamplingInfo, cls: object, batch: SglScheduleBatch, *_: object, **__: object
) -> SglSamplingInfo:
    """Hook after `SamplingBatchInfo.from_schedule_batch`: counts the output of retracted requests.

    A retracted request is prefilled together with its output. SGLang's penalties and
    `min_new_tokens` would start at zero again.
    """
    if not result.penalizer_orchestrator.is_required:
        return result
    import torch

    for row, req in enumerate(batch.reqs):
        if req.retracted_stain and req.output_ids:
            tokens = torch.tensor(list(req.output_ids), dtype=torch.int64, device=result.device)
            for penalizer in result.penalizer_orchestrator.penalizers.values():
                count = _COUNT.get(type(penalizer).__name__)
                if count is not None and penalizer.is_prepared():
                    count(penalizer, row, tokens)
    return result


def without_minimum(
    stock: Callable[[SglSamplingInfo], SglSamplingInfo], info: SglSamplingInfo
) -> SglSamplingInfo:
    """Hook around `SamplingBatchInfo.copy_for_forward`: on an engine that drafts, leaves
    `min_new_tokens` out of a step's penalties and hands its stop tokens on."""
    from sglang.srt.runtime_context import get_spec

    penalizers = info.penalizer_orchestrator
    all_kinds, required = penalizers.penalizers, penalizers.is_required
    prepared = {kind for kind, one in all_kinds.items() if one.is_prepared()}
    minimum = next((kind for kind in prepared if kind.__name__ == MINIMUM), None)
    if minimum is None or get_spec().speculative_algorithm != ALGORITHM:
        return stock(info)
    penalizers.penalizers = {kind: one for kind, one in all_kinds.items() if kind is not minimum}
    penalizers.is_required = len(prepared) > 1
    try:
        result = stock(info)
    finally:
        penalizers.penalizers, penalizers.is_required = all_kinds, required
    result.seer_stops = cast(SglMinNewTokens, all_kinds[minimum]).stop_token_penalties
    return result


def _count_all(penalizer: SglMinNewTokens, row: int, tokens: torch.Tensor) -> None:
    penalizer.len_output_tokens[row] += len(tokens)


def _count_each(penalizer: SglFrequencyPenalty, row: int, tokens: torch.Tensor) -> None:
    penalties = penalizer.frequency_penalties[row].expand(len(tokens))
    penalizer.cumulated_frequency_penalties[row].scatter_add_(0, tokens, penalties)


def _mark_present(penalizer: SglPresencePenalty, row: int, tokens: torch.Tensor) -> None:
    penalizer.cumulated_presence_penalties[row, tokens] = penalizer.presence_penalties[row]


def _mark_repeated(penalizer: SglRepetitionPenalty, row: int, tokens: torch.Tensor) -> None:
    penalizer.cumulated_repetition_penalties[row, tokens] = penalizer.repetition_penalties[row]


# By the penalizer's class: the function that counts the tokens of one row of a batch.
_COUNT: dict[str, Callable[[Any, int, torch.Tensor], None]] = {
    MINIMUM: _count_all,
    "BatchedFrequencyPenalizer": _count_each,
    "BatchedPresencePenalizer": _mark_present,
    "BatchedRepetitionPenalizer": _mark_repeated,
}


def _by_token(batch: SglScheduleBatch) -> bool:
    """Returns whether penalties depend on the drawn tokens; `min_new_tokens` only counts them."""
    penalizers = batch.sampling_info.penalizer_orchestrator.penalizers
    return any(
        penalizer.is_prepared() and kind.__name__ != MINIMUM
        for kind, penalizer in penalizers.items()
    )
