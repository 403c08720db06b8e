"""Turns finished requests into Samples."""

from seer_sgl.types import Request, Sample

from .response_text import ResponseText
from .tokenizer import Tokenizer


class SampleMaker:
    """Makes the samples of one run. `started_at`: the zero of its times, on the driver's clock."""

    def __init__(
        self, rollout_id: str, started_at: float = 0.0, tokenizer: Tokenizer | None = None
    ) -> None:
        self._rollout_id = rollout_id
        self._started_at = started_at
        self._tokenizer = tokenizer

    def __call__(self, request: Request) -> Sample:
        """Returns the sample of a request that is complete or was given up."""
        started, finished = request.started_at or 0.0, request.finished_at or 0.0
        return Sample(
            rollout_id=self._rollout_id,
            group_id=request.group.group_id,
            index=request.index,
            prompt_ids=request.group.prompt.prompt_ids,
            response_ids=request.response_ids,
            response_length=request.generated,
            rollout_log_probs=request.logprobs,
            finish_reason=request.finish_reason or "abort",
            matched=request.matched,
            weight_version=request.weight_spans[-1].version if request.weight_spans else "",
            weight_spans=request.weight_spans,
            text=self._text(request),
            seed=request.seed,
            chunks=len(request.engines),
            engines=request.engines,
            chunk_lengths=request.chunk_lengths,
            accept_length=(
                request.speculated / request.verify_steps if request.verify_steps else None
            ),
            submitted_at=round(request.submitted_at - self._started_at, 6),
            started_at=round(started - self._started_at, 6),
            finished_at=round(finished - self._started_at, 6),
            metadata=request.group.prompt.metadata,
            images=len(request.group.prompt.image_data),
            failure=None if request.failure is None else request.failure.message,
            routed_experts=request.routed_experts,
        )

    def _text(self, request: Request) -> str | None:
        """Returns the response text as SGLang would: without the matched stop."""
        if self._tokenizer is None:
            return None
        prompt_ids = request.group.prompt.prompt_ids
        text = ResponseText(self._tokenizer, prompt_ids, request.sampling)
        return text.end(request.response_ids, request.matched)
