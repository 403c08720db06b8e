"""SGLang's JSON, as far as we read and write it.

Replies are decoded tolerantly: only the fields needed, everything else skipped. What is read is
not believed: a reply that cannot be true raises Unreadable, so that it costs a chunk and never
becomes a sample.
"""

import math
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from seer_sgl.link.contract import EXAMINED, ORIGIN, Natural, PluginReport, Positive
from seer_sgl.types import (
    Chunk,
    ChunkReply,
    FinishReason,
    WeightSpan,
    logprob_array,
    token_array,
)

T = TypeVar("T")

# What SGLang reports as the matched stop when logits are NaN (Req._check_vocab_boundary_finish).
NAN_MATCH = "NaN happened"
# No logarithm of a probability is above 0; log-softmax in float32 may round a little over it.
MAX_LOGPROB = 1e-4


class Unreadable(ValueError):
    """A reply that is not SGLang's, or not to what was asked; the message names what is wrong."""


class Finish(msgspec.Struct):
    type: FinishReason
    matched: int | str | None = None
    message: str | None = None
    status_code: int | None = None  # in a stream, of what would be an HTTP error without one


class _CachedDetails(msgspec.Struct):
    device: int = 0
    host: int = 0
    storage: int = 0


class _VersionSpan(msgspec.Struct):
    version: str
    start: int
    end: int


class Token(msgspec.Struct, array_like=True, gc=False):
    """[logprob, id, text]. An array-like struct decodes a third faster than a tuple."""

    logprob: float  # SGLang sends null for NaN and for the infinities
    id: int


class Meta(msgspec.Struct, kw_only=True, rename={"examined": EXAMINED}):
    id: str
    finish_reason: Finish
    completion_tokens: Natural
    output_token_logprobs: list[Token] = []
    weight_version: str = "default"
    weight_versions: list[_VersionSpan] | None = None
    cached_tokens: int = 0
    cached_tokens_details: _CachedDetails | None = None
    num_retractions: int = 0
    spec_verify_ct: int = 0
    examined: list[Natural | None] | None = None  # of our plugin


class _Reply(msgspec.Struct):
    meta_info: Meta


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

    loads: Annotated[list[LoadEntry], msgspec.Meta(min_length=1)]


class InternalState(msgspec.Struct):
    """One scheduler of `/server_info`; `seer_sgl` is None in a stock server."""

    effective_max_running_requests_per_dp: Positive
    seer_sgl: PluginReport | None = None
    startup_time: dict[str, Any] | None = None  # null before SGLang has measured it

    def start(self) -> str | None:
        """A name for this start of a stock server: how long it took, to the microsecond. None if
        it does not report it."""
        took = (self.startup_time or {}).get("scheduler_e2e")
        return None if took is None else f"started in {took} s"


class ServerInfo(msgspec.Struct):
    """`/server_info`."""

    version: str
    model_path: str
    max_total_num_tokens: Positive
    max_req_input_len: Positive
    page_size: Positive
    disable_radix_cache: bool
    dp_size: int
    weight_version: str
    enable_deterministic_inference: bool
    skip_tokenizer_init: bool
    internal_states: Annotated[list[InternalState], msgspec.Meta(min_length=1)]
    pp_size: int = 1


class Complaint(msgspec.Struct):
    message: str


class Refusal(msgspec.Struct):
    """The body of an HTTP error: SGLang's own has `error`; for a body that does not fit its types,
    `object` (http_server._create_error_response, validation_exception_handler)."""

    error: Complaint | None = None
    object: str | None = None
    message: str | None = None

    @property
    def explanation(self) -> str | None:
        """Why SGLang refuses the request; None if this is the body of a proxy or the like."""
        if self.error is not None:
            return self.error.message
        return self.message if self.object == "error" else None


_encoder = msgspec.json.Encoder()


def sampling_params(chunk: Chunk, drafting: bool) -> dict[str, Any]:
    """The `sampling_params` of a chunk. All of them are sent: a server may have own defaults."""
    request, sampling = chunk.request, chunk.request.group.sampling
    params = msgspec.structs.asdict(sampling)
    params["max_new_tokens"] = chunk.max_new_tokens
    # What is left of it: SGLang counts the tokens of one call only, and refuses a minimum above
    # the call's own budget.
    left = max(0, sampling.min_new_tokens - request.generated)
    params["min_new_tokens"] = min(left, chunk.max_new_tokens)
    params["sampling_seed"] = request.seed
    if drafting:
        origin = {
            "group": request.group.uid,
            "sample": request.index,
            "prompt_len": request.prompt_len,
            "probe": request.index == 0,
        }
        params["custom_params"] = {**sampling.custom_params, ORIGIN: origin}
    return {name: value for name, value in params.items() if value not in ([], {}, None)}


def encode_generate(chunk: Chunk, drafting: bool = False, stream: bool = False) -> bytes:
    """The body of `/generate` for a chunk: prompt and everything generated so far as input ids.

    drafting: the engine speculates; it has to know whose tokens these are (plugin/speculation).
    """
    request = chunk.request
    return _encoder.encode(
        {
            "rid": chunk.rid,
            "input_ids": request.group.prompt.prompt_ids.tolist() + request.response_ids.tolist(),
            "sampling_params": sampling_params(chunk, drafting),
            "return_logprob": True,
            **({"stream": True} if stream else {}),
        }
    )


def decode(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """JSON as `kind`. Raises Unreadable, whatever the bytes are."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error


def decode_generate(body: bytes, chunk: Chunk, vocab_size: int | None = None) -> ChunkReply:
    """The reply of `/generate` to a chunk. Raises Unreadable if it is none, or cannot be true.

    vocab_size: the ids that the model has; None: not known.
    """
    return checked_reply(decode(body, _Reply).meta_info, chunk, vocab_size)


def checked_reply(meta: Meta, chunk: Chunk, vocab_size: int | None, final: int = 0) -> ChunkReply:
    """Returns the whole reply to a chunk. Raises Unreadable if it cannot be true.

    Ids and logprobs are read from the same entries, so they cannot disagree in length. `final`:
    tokens that came before it and were reported already.
    """
    check_rid(meta.id, chunk)
    tokens = meta.output_token_logprobs
    finish = meta.finish_reason
    aborted = finish.type == "abort"  # SGLang may leave the logprobs of such a one out
    missing = meta.completion_tokens - len(tokens)
    if missing < 0 or (missing > 0 and not aborted):
        raise Unreadable(f"{len(tokens)} token logprobs for {meta.completion_tokens} tokens")
    if aborted:
        tokens = tokens[: max(final, _examined(meta))]
    ids, logprobs = arrays(tokens, chunk, vocab_size)
    _check_end(finish, ids)
    details = meta.cached_tokens_details or _CachedDetails(device=meta.cached_tokens)
    # No sample depends on the counters below: one that is wrong only spoils the statistics.
    return ChunkReply(
        ids=ids,
        logprobs=logprobs,
        weight_spans=_spans(meta, len(tokens)),
        finish=finish.type,
        matched=finish.matched,
        cached_device=max(0, details.device),
        cached_host=max(0, details.host),
        cached_storage=max(0, details.storage),
        retractions=max(0, meta.num_retractions),
        verify_steps=max(0, meta.spec_verify_ct),
    )


def check_rid(rid: str, chunk: Chunk) -> None:
    """Raise Unreadable for a reply to another call."""
    if rid != chunk.rid:
        raise Unreadable(f"it answers request {rid[:100]!r}, not {chunk.rid!r}")


def check_count(count: int, chunk: Chunk) -> None:
    """Raise Unreadable for more tokens than the chunk may have."""
    if count > chunk.max_new_tokens:
        raise Unreadable(f"{count} tokens where {chunk.max_new_tokens} were asked for")


def arrays(
    tokens: Sequence[Token], chunk: Chunk, vocab_size: int | None
) -> "tuple[array[int], array[float]]":
    """Ids and logprobs of a chunk's tokens. Raises Unreadable if they cannot be its."""
    check_count(len(tokens), chunk)
    try:
        ids = token_array([token.id for token in tokens])
    except OverflowError as error:
        raise Unreadable("a token id of more than 32 bits") from error
    logprobs = logprob_array([token.logprob for token in tokens])
    _check_numbers(ids, logprobs, vocab_size)
    return ids, logprobs


def _examined(meta: Meta) -> int:
    """How many tokens of an aborted reply SGLang has looked at for a stop.

    It appends the tokens of a step and then ends an aborted request without looking at them
    (Req.update_finish_state): the last step is drawn again. Our plugin reports where it began.
    Without the plugin a plain step is known to be one token, and a step with drafts any number.
    """
    count = len(meta.output_token_logprobs)
    reported = meta.examined[-1] if meta.examined else None
    if reported is None:
        return 0 if meta.spec_verify_ct else max(0, count - 1)
    if reported > count:
        raise Unreadable(f"{reported} examined tokens of {count}")
    return reported


def _check_numbers(ids: "array[int]", logprobs: "array[float]", vocab_size: int | None) -> None:
    if not ids:
        return
    every_id, every_logprob = np.frombuffer(ids, np.int32), np.frombuffer(logprobs, np.float32)
    for wrong in (every_id.min(), every_id.max()):
        if wrong < 0 or (vocab_size is not None and wrong >= vocab_size):
            raise Unreadable(f"token id {wrong} is outside the vocabulary")
    for value in (every_logprob.min(), every_logprob.max()):
        if not -math.inf < value <= MAX_LOGPROB:
            raise Unreadable(f"a token has the log probability {value:g}")


def _check_end(finish: Finish, ids: "array[int]") -> None:
    """SGLang ends a call because of its last token, and names the stop it found."""
    if finish.matched == NAN_MATCH:
        raise Unreadable("the model produced NaN logits")
    if finish.type != "abort" and not ids:
        raise Unreadable(f"it ends with {finish.type!r} and has no token")
    if finish.type != "stop":
        return
    if finish.matched is None:
        raise Unreadable("it ends with 'stop' and does not name the stop")
    if isinstance(finish.matched, int) and finish.matched != ids[-1]:
        raise Unreadable(f"it ends with token {ids[-1]}, not with its stop {finish.matched}")


def _spans(meta: Meta, tokens: int) -> list[WeightSpan]:
    """The weight versions of exactly the first `tokens` tokens of the reply."""
    if meta.weight_versions is None:
        return [WeightSpan(meta.weight_version, tokens)] if tokens else []
    end = 0
    for span in meta.weight_versions:
        if span.start != end or span.end < span.start:
            raise Unreadable(f"weight versions from {span.start} to {span.end} after {end}")
        end = span.end
    if end != meta.completion_tokens:
        raise Unreadable(f"weight versions for {end} tokens of {meta.completion_tokens}")
    return [
        WeightSpan(span.version, min(span.end, tokens) - span.start)
        for span in meta.weight_versions
        if span.start < tokens
    ]


def refusal(body: bytes) -> str | None:
    """SGLang's own refusal of a request; None for what a proxy or its authentication answers."""
    try:
        return decode(body, Refusal).explanation
    except Unreadable:
        return None
