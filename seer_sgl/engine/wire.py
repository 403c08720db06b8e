"""Encodes requests to SGLang and decodes its JSON replies.

Replies are decoded tolerantly: only the fields needed, and all others are skipped. The values are
checked: an impossible reply raises Unreadable, so that it costs a chunk and never becomes a sample.
"""

import math
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from seer_sgl.engine_types import EngineInfo
from seer_sgl.link.contract import (
    EXAMINED,
    EXPERTS,
    LONGEST,
    MAX_COUNT,
    NO_READ,
    ORIGIN,
    PROMPT_LEN,
    STOP_TOKENS,
    Natural,
    PluginReport,
    Positive,
    draft_group,
)
from seer_sgl.routed_experts import ExpertShape
from seer_sgl.types import (
    Chunk,
    ChunkReply,
    FinishReason,
    WeightSpan,
    logprob_array,
    token_array,
)

from . import experts

T = TypeVar("T")

# SGLang's matched stop if the logits are NaN (Req._check_vocab_boundary_finish).
NAN_MATCH = "NaN happened"
# A log probability is at most 0; log-softmax in float32 may round to slightly above.
MAX_LOGPROB = 1e-4
MOST_RANKS = 1024  # data-parallel; each of them is an engine
Ranks = Annotated[int, msgspec.Meta(gt=0, le=MOST_RANKS)]
# A longer window than any stop string has would make the search at a boundary slow.
StopTokens = Annotated[int, msgspec.Meta(ge=0, le=1 << 14)]
NUMPY_FROM = 64  # values; for fewer, as in an event of a stream, numpy is slower than Python


class Unreadable(ValueError):
    """A reply that is not SGLang's or does not match the request; the message has the reason."""


class Finish(msgspec.Struct):
    type: FinishReason
    matched: int | str | None = None
    message: str | None = None
    status_code: int | None = None  # in a stream: the HTTP status of an error


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


class Meta(msgspec.Struct, kw_only=True, rename={"examined": EXAMINED, "stop_tokens": STOP_TOKENS}):
    id: str
    finish_reason: Finish
    completion_tokens: Natural
    prompt_tokens: int | None = None
    output_token_logprobs: list[Token] = []
    weight_version: str = "default"
    weight_versions: list[_VersionSpan] | None = None
    cached_tokens: int = 0
    cached_tokens_details: _CachedDetails | None = None
    num_retractions: int = 0
    spec_verify_ct: int = 0
    routed_experts: bytes | None = None
    # From our plugin:
    examined: list[Natural | None] | None = None
    stop_tokens: list[StopTokens | None] | None = None


class _Reply(msgspec.Struct):
    meta_info: Meta


class _Transfers(msgspec.Struct):
    """Requests whose KV is under way: with our plugin, from the pool (plugin/kv_waits.py)."""

    decode_transfer_queue_reqs: int = 0


class LoadEntry(msgspec.Struct):
    """One data-parallel rank of `/v1/loads`."""

    dp_rank: int = 0
    num_running_reqs: int = 0
    num_waiting_reqs: int | None = None
    num_used_tokens: int = 0
    total_prefill_uncached_tokens: int = 0
    decode_moments: list[float] | None = None
    disaggregation: _Transfers | None = None

    @property
    def progress(self) -> tuple[Any, ...]:
        """The figures that change only while the engine works.

        The queue length is not among them: it also grows at a stuck engine.
        """
        return (
            self.num_running_reqs,
            self.num_used_tokens,
            self.total_prefill_uncached_tokens,
            self.decode_moments,
        )

    @property
    def kv_waiting(self) -> int:
        """Waiting requests that wait for their KV and not for room."""
        under_way = (
            0 if self.disaggregation is None else (self.disaggregation.decode_transfer_queue_reqs)
        )
        return max(0, min(under_way, self.num_waiting_reqs or 0))

    @property
    def requests(self) -> int | None:
        """Running plus waiting requests; None if the server does not report waiting ones."""
        waiting = self.num_waiting_reqs
        return None if waiting is None else self.num_running_reqs + waiting


class Loads(msgspec.Struct):
    """`/v1/loads`."""

    loads: Annotated[list[LoadEntry], msgspec.Meta(min_length=1)]

    def of(self, dp_rank: int) -> LoadEntry | None:
        return next((load for load in self.loads if load.dp_rank == dp_rank), None)


class _Memory(msgspec.Struct):
    token_capacity: Positive | None = None


class InternalState(msgspec.Struct):
    """One scheduler of `/server_info`; `seer_sgl` is None for a stock server."""

    effective_max_running_requests_per_dp: Positive
    seer_sgl: PluginReport | None = None
    startup_time: dict[str, Any] | None = None  # null before SGLang has measured it
    memory_usage: _Memory | None = None

    def start(self) -> str | None:
        """Returns a name for this start of a stock server; None if it has no startup time.

        The name is its startup time, to the microsecond.
        """
        startup_s = (self.startup_time or {}).get("scheduler_e2e")
        return None if startup_s is None else f"started in {startup_s} s"


class ModelInfo(msgspec.Struct):
    """`/model_info`: the weights of the latest update."""

    model_path: str
    weight_version: str
    has_image_understanding: bool = False


class ServerInfo(msgspec.Struct):
    """`/server_info`, without its weights: SGLang keeps those that the server was started with."""

    version: str
    max_total_num_tokens: Positive
    max_req_input_len: Positive
    page_size: Positive
    disable_radix_cache: bool
    dp_size: Ranks
    enable_deterministic_inference: bool
    skip_tokenizer_init: bool
    internal_states: Annotated[
        list[InternalState], msgspec.Meta(min_length=1, max_length=MOST_RANKS)
    ]
    pp_size: Positive = 1
    tp_size: Positive = 1
    enable_dp_attention: bool = False
    enable_session_radix_cache: bool = False
    disaggregation_mode: str = "null"
    incremental_streaming_output: bool = False
    seer: dict[str, Any] | None = None  # of a rollout server, which is no engine

    @property
    def ranks(self) -> int:
        """The processes with a part of the model; DP attention shares those of tensor parallelism
        out (`compute_world_size`)."""
        replicas = 1 if self.enable_dp_attention else self.dp_size
        return replicas * self.tp_size * self.pp_size

    def state(self, dp_rank: int) -> InternalState | None:
        """Returns the scheduler of a data-parallel rank; SGLang lists them in any order.

        None: it does not answer, or a server of several ranks runs without the plugin.
        """
        if self.dp_size == 1:
            return self.internal_states[0]
        reports = ((state, state.seer_sgl) for state in self.internal_states)
        return next((s for s, report in reports if report and report.dp_rank == dp_rank), None)

    def kv_tokens(self) -> int:
        """Returns the KV capacity in tokens of an engine: of several ranks the least one, with
        which all of them can be restarted."""
        if self.dp_size == 1:
            return self.max_total_num_tokens
        memory = (state.memory_usage for state in self.internal_states)
        capacities = (None if usage is None else usage.token_capacity for usage in memory)
        return min([self.max_total_num_tokens, *filter(None, capacities)])


class ErrorBody(msgspec.Struct):
    message: str


class Refusal(msgspec.Struct):
    """The body of an HTTP error from SGLang.

    SGLang's own errors have `error`, its validation errors have `object`
    (http_server._create_error_response, validation_exception_handler).
    """

    error: ErrorBody | None = None
    object: str | None = None
    message: str | None = None


_encoder = msgspec.json.Encoder()


def sampling_params(
    chunk: Chunk, drafting: bool, shape: ExpertShape | None = None
) -> dict[str, Any]:
    """Returns the `sampling_params` of a chunk: all of them, as a server may have own defaults.

    shape: of routed experts, if the chunk asks for them.
    """
    request, sampling = chunk.request, chunk.request.sampling
    params = msgspec.structs.asdict(sampling)
    del params["return_routed_experts"]  # a field of the call
    params["max_new_tokens"] = chunk.max_new_tokens
    # The remaining minimum: SGLang counts the tokens of one call only, and refuses a minimum above
    # the call's own budget.
    left = max(0, sampling.min_new_tokens - request.sampled)
    params["min_new_tokens"] = min(left, chunk.max_new_tokens)
    params["sampling_seed"] = request.seed
    origin: dict[str, Any] = {}
    if drafting:
        origin = {
            "group": draft_group(request.group.uid, request.index),
            "sample": request.index,
            PROMPT_LEN: request.prompt_len,
        }
    group = request.group
    if group.longest is not None and not group.undivided:  # it has images
        origin |= {PROMPT_LEN: len(group.prompt.prompt_ids), LONGEST: group.longest}
    if not chunk.reads:
        origin[NO_READ] = True
    if shape is not None:
        origin[EXPERTS] = shape.dtype
    if origin:
        params["custom_params"] = {**sampling.custom_params, ORIGIN: origin}
    return {name: value for name, value in params.items() if value not in ([], {}, None)}


def encode_generate(chunk: Chunk, engine: EngineInfo, stream: bool) -> bytes:
    """Returns the body of `/generate` for a chunk: prompt and response so far as input ids.

    The prompt has a placeholder for each of its images, which are sent with every chunk. For an
    engine that drafts, the body names the group of the tokens (plugin/speculation).
    """
    request, fields = chunk.request, dict[str, Any]()
    shape = engine.experts if experts.asks(chunk) else None
    if engine.sessions and request.retain_kv:  # a conversation's turn, whose KV is evicted last
        fields["session_id"] = request.uid
    if engine.dp_size > 1:
        fields["routed_dp_rank"] = engine.dp_rank
    if stream:
        fields["stream"] = True
    if request.group.prompt.image_data:
        fields["image_data"] = request.group.prompt.image_data
    if shape is not None:
        fields |= {"return_routed_experts": True, "routed_experts_start_len": request.routed}
    return _encoder.encode(
        {
            "rid": chunk.rid,
            "input_ids": request.group.prompt.prompt_ids.tolist() + request.response_ids.tolist(),
            "sampling_params": sampling_params(chunk, engine.draft_tokens > 0, shape),
            "return_logprob": True,
            **fields,
        }
    )


def decode(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Returns JSON decoded as `kind`. Raises Unreadable for any invalid bytes."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error


def decode_generate(
    body: bytes, chunk: Chunk, vocab_size: int | None = None, shape: ExpertShape | None = None
) -> ChunkReply:
    """Returns the reply of `/generate` to a chunk. Raises Unreadable if it is invalid.

    vocab_size: the number of token ids of the model; None: unknown. `shape`: of routed experts.
    """
    return checked_reply(decode(body, _Reply).meta_info, chunk, vocab_size, shape=shape)


def checked_reply(
    meta: Meta,
    chunk: Chunk,
    vocab_size: int | None,
    final: int = 0,
    shape: ExpertShape | None = None,
) -> ChunkReply:
    """Returns the whole reply to a chunk. Raises Unreadable if it is impossible.

    Ids and logprobs are read from the same entries, so they cannot differ in length. `final`: the
    number of leading tokens that were already reported.
    """
    check_rid(meta.id, chunk)
    tokens = meta.output_token_logprobs
    finish = meta.finish_reason
    aborted = finish.type == "abort"  # SGLang may omit the logprobs of an aborted reply
    missing = meta.completion_tokens - len(tokens)
    if missing < 0 or (missing > 0 and not aborted):
        raise Unreadable(f"{len(tokens)} token logprobs for {meta.completion_tokens} tokens")
    if aborted:
        tokens = tokens[: max(final, _examined(meta))]
    ids, logprobs = arrays(tokens, chunk, vocab_size)
    _check_end(finish, ids)
    given = _input_tokens(meta, chunk)
    try:
        rows = experts.of_reply(
            meta.routed_experts,
            chunk,
            meta.completion_tokens,
            len(tokens),
            shape,
            input_tokens=given,
        )
    except ValueError as error:
        raise Unreadable(str(error)) from error
    details = meta.cached_tokens_details or _CachedDetails(device=meta.cached_tokens)
    # No sample depends on the counters below: a wrong one in range only spoils the statistics.
    return ChunkReply(
        ids=ids,
        logprobs=logprobs,
        weight_spans=_spans(meta, len(tokens)),
        finish=finish.type,
        matched=finish.matched,
        cached_device=in_range(details.device),
        cached_host=in_range(details.host),
        cached_storage=in_range(details.storage),
        retractions=in_range(meta.num_retractions),
        verify_steps=in_range(meta.spec_verify_ct),
        stop_tokens=meta.stop_tokens[-1] if meta.stop_tokens else None,
        routed_experts=rows,
        input_tokens=given,
    )


def in_range(count: int) -> int:
    """Returns what a server counts; an impossible count is clamped."""
    return min(max(0, count), MAX_COUNT)


def check_rid(rid: str, chunk: Chunk) -> None:
    """Raises Unreadable for a reply to another call."""
    if rid != chunk.rid:
        raise Unreadable(f"the reply is to request {rid[:100]!r}, not {chunk.rid!r}")


def check_count(count: int, chunk: Chunk) -> None:
    """Raises Unreadable for more tokens than the chunk may have."""
    if count > chunk.max_new_tokens:
        raise Unreadable(f"{count} tokens, but at most {chunk.max_new_tokens} were requested")


def arrays(
    tokens: Sequence[Token], chunk: Chunk, vocab_size: int | None
) -> "tuple[array[int], array[float]]":
    """Returns the ids and logprobs of a chunk's tokens. Raises Unreadable if they are invalid."""
    check_count(len(tokens), chunk)
    try:
        ids = token_array([token.id for token in tokens])
    except OverflowError as error:
        raise Unreadable("a token id of more than 32 bits") from error
    logprobs = logprob_array([token.logprob for token in tokens])
    _check_numbers(ids, logprobs, vocab_size)
    return ids, logprobs


def _input_tokens(meta: Meta, chunk: Chunk) -> int | None:
    """Returns the input tokens of a chunk with images, as the engine counts them; else None."""
    group, given = chunk.request.group, meta.prompt_tokens
    if not group.prompt.image_data or not meta.completion_tokens:
        return None
    least = len(group.prompt.prompt_ids) + chunk.request.generated
    if given is None or given < least:  # an image has at least the token of its placeholder
        raise Unreadable(f"{given} input tokens; without images there are {least}")
    if group.longest is not None and given >= group.longest:
        raise Unreadable(f"{given} input tokens; the engines accept {group.longest - 1}")
    if group.counted and given != chunk.request.total_len:
        raise Unreadable(f"{given} input tokens; the engines counted {chunk.request.total_len}")
    return given


def _examined(meta: Meta) -> int:
    """Returns how many tokens of an aborted reply SGLang has checked for a stop.

    SGLang appends the tokens of the last step, but ends an aborted request without checking them
    (Req.update_finish_state). So the last step is sampled again. Our plugin reports where that step
    began. Without the plugin, a plain step has one token, and a step with drafts any number.
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
    for wrong in _extremes(ids):
        if wrong < 0 or (vocab_size is not None and wrong >= vocab_size):
            raise Unreadable(f"token id {wrong} is outside the vocabulary")
    for value in _extremes(logprobs):
        if not -math.inf < value <= MAX_LOGPROB:
            raise Unreadable(f"a token has the log probability {value:g}")


def _extremes(values: "array[Any]") -> tuple[Any, Any]:
    """Returns the least and the greatest value. JSON has no NaN."""
    if len(values) < NUMPY_FROM:
        return min(values), max(values)
    every = np.frombuffer(values, values.typecode)
    return every.min(), every.max()


def _check_end(finish: Finish, ids: "array[int]") -> None:
    """Raises Unreadable if the finish reason does not fit the last token.

    SGLang ends a call because of its last token, and names the stop it matched.
    """
    if finish.matched == NAN_MATCH:
        raise Unreadable("the model produced NaN logits")
    if finish.type != "abort" and not ids:
        raise Unreadable(f"the reply ends with {finish.type!r} and has no token")
    if finish.type != "stop":
        return
    if finish.matched is None:
        raise Unreadable("the reply ends with 'stop' and does not name the stop")
    if isinstance(finish.matched, int) and finish.matched != ids[-1]:
        raise Unreadable(f"the reply ends with token {ids[-1]}, not with stop {finish.matched}")


def _spans(meta: Meta, tokens: int) -> list[WeightSpan]:
    """Returns the weight versions of exactly the first `tokens` tokens of the reply."""
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
    """Returns SGLang's reason for refusing a request; None if the body is not from SGLang."""
    try:
        found = decode(body, Refusal)
    except Unreadable:
        return None
    if found.error is not None:
        return found.error.message
    return found.message if found.object == "error" else None  # else of a proxy
