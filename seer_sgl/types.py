"""The data types of a rollout.

Token ids and logprobs are stored in `array.array` ("i" and "f", 4 bytes per item). A rollout holds
10^8 of them, and lists of Python ints would need nine times the memory.
"""

from array import array
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Literal

import msgspec

from .bounds import Natural
from .routed_experts import RoutedExperts
from .sampling import Sampling as Sampling  # noqa: PLC0414 (a data type like the ones below)

FinishReason = Literal["stop", "length", "abort"]
# What ends with a request that failed for good: the request alone, or all of its group.
OnFailure = Literal["sample", "group"]


def token_array(ids: Any = ()) -> "array[int]":
    """Returns token ids as int32. Raises TypeError or OverflowError for other values."""
    return array("i", ids)


def logprob_array(values: Any = ()) -> "array[float]":
    """Returns logprobs as float32, the precision of SGLang's own."""
    return array("f", values)


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One tokenized prompt. `text` or `messages`: the source of its ids, if there is one.

    `image_data`: data URLs of its images; `prompt_ids` has one placeholder for each. SGLang puts an
    image's tokens in place of its placeholder. `image_tokens`: about how many tokens that adds.
    """

    prompt_id: str
    prompt_ids: "array[int]"
    n: int
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    metadata: Any = None
    sampling: Sampling | None = None  # None: the rollout's
    image_data: tuple[str, ...] = ()
    image_tokens: int = 0


class WeightSpan(msgspec.Struct, frozen=True):
    """`tokens` consecutive response tokens that were sampled with weights `version`."""

    version: str
    tokens: Natural


def spans_after(spans: list[WeightSpan], skipped: int) -> list[WeightSpan]:
    """Returns the spans without their first `skipped` tokens."""
    kept = []
    for span in spans:
        left = max(0, span.tokens - skipped)
        skipped -= span.tokens - left
        if left:
            kept.append(WeightSpan(span.version, left))
    return kept


class Move(Enum):
    """How an engine obtains the KV of a chunk's input."""

    STAY = "stay"  # the engine already has it, or there is none yet
    FETCH = "fetch"  # read from the pool
    PREFILL = "prefill"  # computed again


class RequestState(Enum):
    """The state of a request: in the buffer, in flight on an engine, or done."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"


class ChunkReply(msgspec.Struct, kw_only=True):
    """An engine's reply to one chunk: the fields we need of SGLang's /generate reply."""

    ids: "array[int]"
    logprobs: "array[float]"
    weight_spans: list[WeightSpan]
    finish: FinishReason
    matched: int | str | None = None  # the stop token id or stop string, when finish == "stop"
    cached_device: int = 0
    cached_host: int = 0
    cached_storage: int = 0
    retractions: int = 0
    verify_steps: int = 0  # SGLang's spec_verify_ct; 0 without speculative decoding
    stop_tokens: int | None = None  # of the longest stop string; None: the engine reports no count
    routed_experts: RoutedExperts | None = None  # a row per token that is no row of the request yet
    input_tokens: int | None = None  # with those of images, which only the engine can count
    passthrough: bool = False  # the engine's answer went to the client, and was not read

    @property
    def tokenless(self) -> bool:
        """Whether the chunk was aborted before its first token."""
        return not self.ids and not self.passthrough

    @property
    def cached(self) -> int:
        """The number of input tokens whose KV was in a cache."""
        return self.cached_device + self.cached_host + self.cached_storage

    @property
    def speculated(self) -> int:
        """The number of its tokens, if there was a verification."""
        return len(self.ids) if self.verify_steps else 0


# Receives the tokens of a chunk as the engine produces them: each token once, in a reply that holds
# the new tokens only. They are final.
OnTokens = Callable[[ChunkReply], None]

# Sends a request unmodified to the engine with this id, and returns when the client has the answer.
# Raises EngineError if the client has received nothing: another engine can answer.
SendUnread = Callable[[str], Awaitable[None]]


class FailureKind(Enum):
    """The reason why a request has no whole sample."""

    REFUSED = "refused"  # engines refuse it
    LOST = "lost"  # its chunks keep failing
    KILLED = "killed"  # engines died while they ran it
    LEFT = "left"  # its caller left before its group was complete


class Failure(msgspec.Struct, frozen=True):
    """The failure of a request, or of the group that was given up because of it."""

    kind: FailureKind
    message: str


class Request(msgspec.Struct, kw_only=True, eq=False):
    """One trajectory that is being generated.

    `own_sampling`: its sampling parameters if they differ from its group's. `resumed_tokens`: how
    many leading response tokens its caller sent with it (a response that was begun before).
    `passthrough`: sends it unmodified; the driver only chooses the engine and the time.
    `preferred_engine`: the engine that holds KV of its input before its first chunk, which it ran
    for the request with the uid `follows`. `retain_kv`: its KV stays in the pool, and is still
    acknowledged, until its group no longer grows.
    """

    uid: str  # the prefix of its SGLang request ids
    order: int  # the position in the order of submission
    group: "Group"
    index: int  # 0 .. n-1 within the group
    seed: int
    max_response_len: int
    own_sampling: Sampling | None = None
    resumed_tokens: int = 0
    passthrough: SendUnread | None = None
    preferred_engine: str | None = None
    follows: str | None = None
    retain_kv: bool = False
    state: RequestState = RequestState.PENDING
    response_ids: "array[int]" = msgspec.field(default_factory=token_array)
    logprobs: "array[float]" = msgspec.field(default_factory=logprob_array)
    weight_spans: list[WeightSpan] = msgspec.field(default_factory=list)
    routed_experts: RoutedExperts | None = None  # a row per token but the last; None: not asked for
    finish_reason: FinishReason | None = None
    matched: int | str | None = None
    engines: list[str] = msgspec.field(default_factory=list)  # one entry per chunk that returned
    chunk_lengths: list[int] = msgspec.field(default_factory=list)  # their tokens
    failure: Failure | None = None  # why it was given up
    streaming: bool = False  # its tokens are reported as they arrive
    verify_steps: int = 0
    speculated: int = 0  # tokens of the replies with verifications
    submitted_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None

    @property
    def sampling(self) -> Sampling:
        """Its sampling parameters."""
        return self.own_sampling or self.group.sampling

    @property
    def prompt_len(self) -> int:
        """The number of prompt tokens, those of images included."""
        return len(self.group.prompt.prompt_ids) + self.group.image_tokens

    @property
    def generated(self) -> int:
        """The number of response tokens so far."""
        return len(self.response_ids)

    @property
    def sampled(self) -> int:
        """The number of response tokens that engines sampled, so without those it was given."""
        return self.generated - self.resumed_tokens

    @property
    def routed(self) -> int:
        """The number of tokens whose routed experts it has."""
        return 0 if self.routed_experts is None else self.routed_experts.rows

    @property
    def total_len(self) -> int:
        """The number of prompt and response tokens: the input length of the next chunk."""
        return self.prompt_len + self.generated

    def total_with(self, budget: int) -> int:
        """Returns the tokens that it has after `budget` more: no engine lets images have more than
        its longest request, whatever is assumed of them."""
        total, longest = self.total_len + budget, self.group.longest
        return total if longest is None else min(total, longest)

    @property
    def remaining(self) -> int:
        """The number of response tokens still allowed; of a prompt with images, what these leave
        by the engines' newest count. It may be wrong, and then less than what is there."""
        group, limit = self.group, self.max_response_len
        if group.counted and group.longest is not None:
            limit = min(limit, group.longest - self.prompt_len)
        return limit - self.generated

    def prefill(self, ids: "array[int]", version: str) -> None:
        """Puts the tokens that a new request is given first, as if weights `version` had sampled
        them. Their log probabilities are unknown: 0."""
        logprobs, spans = array("f", bytes(4 * len(ids))), [WeightSpan(version, len(ids))]
        self.append(ChunkReply(ids=ids, logprobs=logprobs, weight_spans=spans, finish="abort"))

    def append(self, reply: ChunkReply) -> None:
        """Appends a reply: ids, logprobs, weight versions and routed experts together, and only
        here.

        Raises ValueError if they differ in length.
        """
        spanned = sum(span.tokens for span in reply.weight_spans)
        if not len(reply.ids) == len(reply.logprobs) == spanned:
            raise ValueError(
                f"chunk of {self.uid}: {len(reply.ids)} ids, {len(reply.logprobs)} logprobs and "
                f"weight versions for {spanned} tokens"
            )
        if reply.input_tokens is not None:
            self.group.count_images(reply.input_tokens - self.total_len)
        if reply.routed_experts is not None:
            self._append_experts(reply.routed_experts, self.total_len + len(reply.ids) - 1)
        self.response_ids.extend(reply.ids)
        self.logprobs.extend(reply.logprobs)
        for span in reply.weight_spans:
            last = self.weight_spans[-1] if self.weight_spans else None
            if last is not None and last.version == span.version:
                self.weight_spans[-1] = WeightSpan(span.version, last.tokens + span.tokens)
            elif span.tokens:
                self.weight_spans.append(span)
        self.verify_steps += reply.verify_steps
        self.speculated += reply.speculated

    def _append_experts(self, more: RoutedExperts, rows: int) -> None:
        if self.routed + more.rows != rows:
            raise ValueError(
                f"chunk of {self.uid}: {more.rows} rows of routed experts after {self.routed}, for "
                f"{rows} tokens"
            )
        if self.routed_experts is None:
            self.routed_experts = more.first(0)
        self.routed_experts.append(more)

    def finish(self, reason: FinishReason, matched: int | str | None, now: float) -> None:
        """Ends the trajectory; a finished request never changes again.

        Raises ValueError if it has already finished.
        """
        if self.state is RequestState.FINISHED:
            raise ValueError(f"request {self.uid} finished twice")
        self.state = RequestState.FINISHED
        self.finish_reason, self.matched, self.finished_at = reason, matched, now


class Group(msgspec.Struct, kw_only=True, eq=False, weakref=True):
    """One prompt, the sampling parameters of most of its requests, and the requests.

    `uid` is unique even if two callers use the same `group_id`. Requests may be added while a group
    is `growing`. A group is complete when it no longer grows and all its requests are finished.
    `samples` has one entry per finished request; a request that failed for good is finished too. A
    withdrawn group is never sent again; see `failure`. `on_failure`: whether it is withdrawn if one
    of its requests fails for good.

    `image_tokens`: how many tokens the images of its prompt add, about; exactly, once it is
    `counted`. `longest`: the most tokens of a prompt with images and its response. `undivided`: the
    engines cannot continue its responses.
    """

    group_id: str
    uid: str
    prompt: Prompt
    sampling: Sampling = Sampling()
    requests: list[Request] = msgspec.field(default_factory=list)
    samples: list["Sample"] = msgspec.field(default_factory=list)
    caller: str = ""  # the caller that waits for it; callers share the engines fairly
    growing: bool = False
    withdrawn: bool = False
    failure: Failure | None = None
    on_failure: OnFailure = "group"
    image_tokens: int = 0
    counted: bool = False
    longest: int | None = None
    undivided: bool = False
    _leading: int = 0  # requests before this position are finished: none is looked at twice

    def __post_init__(self) -> None:
        self.image_tokens = self.prompt.image_tokens

    def count_images(self, more: int) -> None:
        """Corrects the number of image tokens, as an engine counts them; `more`: than assumed.

        The responses end where the engines' limit is.
        """
        self.counted = True
        self.image_tokens += more

    def forget_count(self) -> None:
        """Forgets how many image tokens the engines count; the next reply counts them again."""
        self.counted, self.image_tokens = False, self.prompt.image_tokens

    @property
    def finished(self) -> bool:
        """Whether all trajectories so far are finished."""
        requests = self.requests
        while self._leading < len(requests):
            if requests[self._leading].state is not RequestState.FINISHED:
                return False
            self._leading += 1
        return True

    @property
    def complete(self) -> bool:
        """Whether all trajectories are finished and no more can be added."""
        return not self.growing and self.finished


class Chunk(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One `/generate` call: a request, its engine and its token budget."""

    request: Request
    engine_id: str
    rid: str
    max_new_tokens: int
    kv_tokens: int  # the tokens that the ledger reserved for it on the engine
    move: Move
    migrated: bool  # the request's previous chunk ran on another engine
    number: int = 0  # its position among the chunks sent to the engine
    undivided: bool = False  # no other chunk can continue the request, so this one must end it
    reads: bool = True  # the engine may read its KV from the pool
    image_tokens: int = 0  # of the input, as far as they were known when it was sent

    @property
    def input_len(self) -> int:
        """The number of input tokens: prompt and response so far."""
        return self.kv_tokens - self.max_new_tokens

    @property
    def continues(self) -> bool:
        """Whether a part of its input is response that engines sampled."""
        given = len(self.request.group.prompt.prompt_ids) + self.request.resumed_tokens
        return self.input_len - self.image_tokens > given

    def ended_by(self, reply: ChunkReply) -> bool:
        """Returns whether the reply ends the request, if the chunk has all remaining tokens."""
        full, longest = len(reply.ids) >= self.max_new_tokens, self.request.group.longest
        if longest is not None and reply.input_tokens is not None:  # the images leave less
            full = full or reply.input_tokens + len(reply.ids) >= longest
        return reply.finish == "stop" or (reply.finish == "length" and full)


class ChunkFigures(msgspec.Struct, frozen=True):
    """The figures of one chunk with a reply, each defined here only. All but `migrated`,
    `planned_fetch` and `retractions` are tokens, or bytes, or steps."""

    tokens: int
    """Response tokens."""
    migrated: bool
    """It ran on another engine than the chunk before."""
    planned_fetch: bool
    """It was placed on an engine that should read KV from the pool."""
    device: int
    """Input tokens whose KV was cached on the device."""
    host: int
    """Input tokens whose KV was cached in the engine's host memory."""
    storage: int
    """Input tokens whose KV was read from the pool."""
    moved_bytes: int
    """The KV of `storage`."""
    reused: int
    """Input tokens of a continuation whose KV was cached."""
    recomputed: int
    """Those that were computed again. SGLang always computes the last input token, even if all of
    them are cached; it does not count."""
    retractions: int
    """Preemptions inside the engine (`meta_info.num_retractions`)."""
    verify_steps: int
    """Verifications of drafts."""
    speculated: int
    """Response tokens, if there was a verification."""

    @classmethod
    def of(cls, chunk: Chunk, reply: ChunkReply, kv_bytes_per_token: int = 0) -> "ChunkFigures":
        """Returns the figures of a chunk. A passthrough is not read, so it continues nothing."""
        continues = chunk.continues and not reply.passthrough
        given = chunk.input_len if reply.input_tokens is None else reply.input_tokens
        return cls(
            tokens=len(reply.ids),
            migrated=chunk.migrated,
            planned_fetch=chunk.move is Move.FETCH,
            device=reply.cached_device,
            host=reply.cached_host,
            storage=reply.cached_storage,
            moved_bytes=reply.cached_storage * kv_bytes_per_token,
            reused=reply.cached if continues else 0,
            recomputed=max(0, given - reply.cached - 1) if continues else 0,
            retractions=reply.retractions,
            verify_steps=reply.verify_steps,
            speculated=reply.speculated,
        )


class ChunkResult(msgspec.Struct, kw_only=True, frozen=True):
    """The result of a chunk: a reply, or an error (then no token is appended).

    `aborted`: the caller aborted the request, so it ends with this chunk. `dropped`: the tokens of
    a reply that became an error. `figures`: of the reply, once the chunk has landed.
    """

    chunk: Chunk
    now: float  # seconds on the rollout's clock
    reply: ChunkReply | None = None
    figures: ChunkFigures | None = None
    error: Exception | None = None
    aborted: bool = False
    dropped: int = 0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a finished request: training data, and how it was generated.

    `rollout_log_probs[i]` is the log probability of `response_ids[i]` under the sampling
    distribution (log-softmax of logits / temperature, before top-p and top-k). Times are seconds
    since the start of the rollout.
    """

    rollout_id: str
    """The rollout that made it."""
    group_id: str
    """The prompt's id."""
    index: int
    """Which of the n samples of its prompt it is."""
    prompt_ids: "array[int]"
    """Token ids of the prompt."""
    response_ids: "array[int]"
    """Token ids of the response."""
    response_length: int
    """Their number."""
    rollout_log_probs: "array[float]"
    """Log probability of each response token, before top-p and top-k."""
    finish_reason: FinishReason
    """`stop`, `length`, or `abort` (asked for by the caller, or see `failure`)."""
    matched: int | str | None
    """The stop string or token that ended it."""
    weight_version: str
    """Version of the weights that generated its last token."""
    weight_spans: list[WeightSpan]
    """Runs of tokens by weight version: more than one if the weights changed on the way."""
    text: str | None
    """The response as text; null without a tokenizer."""
    seed: int
    """The request's seed."""
    chunks: int
    """Chunks that it took."""
    engines: list[str]
    """Engines that ran them, in order."""
    chunk_lengths: list[int] = []
    """Tokens that each chunk returned, in order."""
    accept_length: float | None
    """Tokens of chunks with verifications, per verification; null without any."""
    submitted_at: float
    """Seconds since the start of the rollout."""
    started_at: float
    """When its first chunk was sent, seconds."""
    finished_at: float
    """When it finished, seconds."""
    metadata: Any = None
    """The prompt's `metadata`, unchanged."""
    images: int = 0
    """Images of the prompt; `prompt_ids` has one placeholder for each."""
    failure: str | None = None
    """Why the request was given up with the tokens it had; null for a whole response."""
    routed_experts: RoutedExperts | None = None
    """Experts of every token but the last, if `return_routed_experts` asks for them: `dtype`,
    `shape` [tokens - 1, layers, experts per token], and `data` in base64."""
