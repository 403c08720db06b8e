"""SGLang's JSON, as far as we read and write it.

Replies are decoded tolerantly: only the fields needed, everything else skipped.
"""

import math
from typing import Any

import msgspec

from seer_sgl.config import SamplingConfig
from seer_sgl.types import (
    Chunk,
    ChunkReply,
    FinishReason,
    WeightSpan,
    logprob_array,
    token_array,
)

# What SGLang reports as the matched stop when logits are NaN (Req._check_vocab_boundary_finish).
NAN_MATCH = "NaN happened"
ORIGIN = "seer_sgl"  # key of `custom_params`: whose response a call continues


class _Finish(msgspec.Struct):
    type: FinishReason
    matched: int | str | None = None
    message: str | None = None


class _CachedDetails(msgspec.Struct):
    device: int = 0
    host: int = 0
    storage: int = 0


class _VersionSpan(msgspec.Struct):
    version: str
    start: int
    end: int


class _Token(msgspec.Struct, array_like=True, gc=False):
    """[logprob, id, text]. An array-like struct decodes a third faster than a tuple."""

    logprob: float | None
    id: int


class _Meta(msgspec.Struct):
    finish_reason: _Finish
    completion_tokens: int = 0
    output_token_logprobs: list[_Token] = []
    weight_version: str = "default"
    weight_versions: list[_VersionSpan] | None = None
    cached_tokens: int = 0
    cached_tokens_details: _CachedDetails | None = None
    num_retractions: int = 0
    spec_verify_ct: int = 0


class _Reply(msgspec.Struct):
    meta_info: _Meta


class LoadEntry(msgspec.Struct):
    """One data-parallel rank of `/v1/loads`."""

    num_running_reqs: int = 0
    num_waiting_reqs: int | None = None
    num_used_tokens: int = 0
    total_prefill_uncached_tokens: int = 0
    decode_moments: list[float] | None = None

    @property
    def progress(self) -> tuple[Any, ...]:
        """What changes only while the engine works: others may queue at one that is stuck."""
        return (
            self.num_running_reqs,
            self.num_used_tokens,
            self.total_prefill_uncached_tokens,
            self.decode_moments,
        )

    @property
    def requests(self) -> int | None:
        """Running or waiting; None of a server that does not report those that wait."""
        waiting = self.num_waiting_reqs
        return None if waiting is None else self.num_running_reqs + waiting


class Loads(msgspec.Struct):
    """`/v1/loads`."""

    loads: list[LoadEntry]


class InternalState(msgspec.Struct):
    """One scheduler of `/server_info`; `seer_sgl` is our plugin's report (plugin/effect.py)."""

    effective_max_running_requests_per_dp: int
    seer_sgl: dict[str, Any] | None = None
    startup_time: dict[str, Any] = {}

    def start(self) -> str | None:
        """A name for this start of a stock server: how long it took, to the microsecond. None if
        it does not tell."""
        took = self.startup_time.get("scheduler_e2e")
        return None if took is None else f"started in {took} s"


class ServerInfo(msgspec.Struct):
    """`/server_info`."""

    version: str
    model_path: str
    max_total_num_tokens: int
    max_req_input_len: int
    page_size: int
    disable_radix_cache: bool
    dp_size: int
    weight_version: str
    enable_deterministic_inference: bool
    skip_tokenizer_init: bool
    internal_states: list[InternalState]
    pp_size: int = 1


_reply_decoder = msgspec.json.Decoder(_Reply)
_encoder = msgspec.json.Encoder()


def constant_sampling_params(sampling: SamplingConfig) -> dict[str, Any]:
    """What every chunk of a rollout shares. All of it is sent: a server may have own defaults."""
    shared = {
        name: getattr(sampling, name)
        for name in sampling.__struct_fields__
        if name not in ("max_response_len", "min_new_tokens")
    }
    return {name: value for name, value in shared.items() if value not in ([], {}, None)}


def encode_generate(
    chunk: Chunk, shared: dict[str, Any], min_new_tokens: int, drafting: bool = False
) -> bytes:
    """The body of `/generate` for a chunk: prompt and everything generated so far as input ids.

    drafting: the engine speculates; it has to know whose tokens these are (plugin/speculation).
    """
    request = chunk.request
    origin = {
        "group": request.group.uid,
        "sample": request.index,
        "prompt_len": request.prompt_len,
        "probe": request.index == 0,
    }
    return _encoder.encode(
        {
            "rid": chunk.rid,
            "input_ids": request.group.prompt.prompt_ids.tolist() + request.response_ids.tolist(),
            "sampling_params": {
                **shared,
                "max_new_tokens": chunk.max_new_tokens,
                # What is left of it: SGLang counts the tokens of one call only, and refuses a
                # minimum above the call's own budget.
                "min_new_tokens": min(
                    max(0, min_new_tokens - request.generated), chunk.max_new_tokens
                ),
                "sampling_seed": request.seed,
                **({"custom_params": {ORIGIN: origin}} if drafting else {}),
            },
            "return_logprob": True,
        }
    )


def decode_generate(body: bytes) -> ChunkReply:
    """A reply of `/generate`. Raises msgspec.DecodeError for anything else.

    Ids and logprobs are read from the same entries, so they cannot disagree in length.
    """
    meta = _reply_decoder.decode(body).meta_info
    tokens = meta.output_token_logprobs
    finish = meta.finish_reason
    if finish.type == "abort":
        # SGLang appends the tokens of a step and then ends an aborted request without looking for
        # a stop in them (Req.update_finish_state): the last step is sampled again. How many tokens
        # a speculative step brought is not told.
        tokens = [] if meta.spec_verify_ct else tokens[:-1]
    elif len(tokens) != meta.completion_tokens:
        raise msgspec.ValidationError(
            f"{len(tokens)} token logprobs for {meta.completion_tokens} tokens"
        )
    if finish.matched == NAN_MATCH:
        raise msgspec.ValidationError("the model produced NaN logits")
    details = meta.cached_tokens_details or _CachedDetails(device=meta.cached_tokens)
    return ChunkReply(
        ids=token_array([token.id for token in tokens]),
        logprobs=logprob_array(
            [-math.inf if token.logprob is None else token.logprob for token in tokens]
        ),
        weight_spans=_spans(meta, len(tokens)),
        finish=finish.type,
        matched=finish.matched,
        cached_device=details.device,
        cached_host=details.host,
        cached_storage=details.storage,
        retractions=meta.num_retractions,
        verify_steps=meta.spec_verify_ct,
    )


def _spans(meta: _Meta, tokens: int) -> list[WeightSpan]:
    """The weight versions of exactly the first `tokens` tokens of the reply."""
    spans = meta.weight_versions or [_VersionSpan(meta.weight_version, 0, tokens)]
    return [
        WeightSpan(span.version, min(span.end, tokens) - span.start)
        for span in spans
        if span.start < tokens
    ]


class _Complaint(msgspec.Struct):
    message: str


class _Refused(msgspec.Struct):
    """`/generate` refuses with `error`; for a body that does not fit its types, with `object`."""

    error: _Complaint | None = None
    object: str | None = None
    message: str | None = None


def is_refusal(body: bytes) -> bool:
    """Whether a body is SGLang's own refusal of a request (http_server._create_error_response,
    validation_exception_handler), and not that of a proxy or of its authentication."""
    try:
        said = msgspec.json.decode(body, type=_Refused)
    except msgspec.DecodeError:
        return False
    return said.error is not None or (said.object == "error" and said.message is not None)
