"""The nouns of a rollout.

Token ids and logprobs live in `array.array` ("i" and "f", 4 bytes an item): a rollout holds
10^8 of them, and lists of Python ints would take nine times the room.
"""

from array import array
from enum import Enum
from typing import Any, Literal

import msgspec

from .errors import ChunkAborted, ChunkRecalled, EngineError, EngineUnavailable, RequestRejected
from .sampling import Sampling as Sampling  # noqa: PLC0414 (a noun like those below)

FinishReason = Literal["stop", "length", "abort"]


def token_array(ids: Any = ()) -> "array[int]":
    """Token ids as int32. Raises TypeError or OverflowError for anything else."""
    return array("i", ids)


def logprob_array(values: Any = ()) -> "array[float]":
    """Logprobs as float32, the precision SGLang computes them in."""
    return array("f", values)


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, tokenized. `text` and `messages` are what it was made from, if anything."""

    prompt_id: str
    prompt_ids: "array[int]"
    n: int
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    metadata: Any = None
    sampling: Sampling | None = None  # None: the rollout's


class WeightSpan(msgspec.Struct, frozen=True):
    """`tokens` consecutive response tokens that were sampled with weights `version`."""

    version: str
    tokens: int


class Move(Enum):
    """How the KV of a chunk gets to its engine."""

    STAY = "stay"  # it is there, or there is none yet
    FETCH = "fetch"  # through the pool
    PREFILL = "prefill"  # computed again


class RequestState(Enum):
    """Where a request is: in the buffer, in flight on an engine, or done."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"


class ChunkReply(msgspec.Struct, kw_only=True):
    """What an engine returned for one chunk (SGLang's /generate reply, the fields we need)."""

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

    @property
    def cached(self) -> int:
        """Input tokens whose KV was found in a cache."""
        return self.cached_device + self.cached_host + self.cached_storage


class FailureKind(Enum):
    """Why a group has not all of its samples."""

    REFUSED = "refused"  # engines refuse one of its requests
    LOST = "lost"  # chunks of one of its requests keep failing
    LEFT = "left"  # its caller left before it was complete


class Failure(msgspec.Struct, frozen=True):
    """The end of a group that is not complete."""

    kind: FailureKind
    message: str


class Request(msgspec.Struct, kw_only=True, eq=False):
    """One trajectory in the making."""

    uid: str  # SGLang request ids start with it
    order: int  # of submission
    group: "Group"
    index: int  # 0 .. n-1 within the group
    seed: int
    max_response_len: int
    state: RequestState = RequestState.PENDING
    response_ids: "array[int]" = msgspec.field(default_factory=token_array)
    logprobs: "array[float]" = msgspec.field(default_factory=logprob_array)
    weight_spans: list[WeightSpan] = msgspec.field(default_factory=list)
    finish_reason: FinishReason | None = None
    matched: int | str | None = None
    engines: list[str] = msgspec.field(default_factory=list)  # one entry a chunk that returned
    attempts: int = 0  # chunks sent, failed ones included: makes SGLang request ids unique
    failures: int = 0  # consecutive chunks that brought nothing, aborted ones left out
    aborts: int = 0  # consecutive chunks that were aborted before their first token
    failing_since: float | None = None  # when the first of them ended, awake seconds
    # By engine id: why its last chunk of this request brought nothing, since a chunk brought some.
    setbacks: dict[str, Exception] = msgspec.field(default_factory=dict)
    aborting: bool = False  # its caller asked for what there is: it ends with the chunk in flight
    watched: bool = False  # its tokens are reported as they come
    rid: str = ""  # of the newest chunk
    returned_at: float | None = None  # when it came back; None while it is in flight
    stored: bool = False  # the KV of the newest chunk is in the pool, and all before it
    verify_steps: int = 0
    submitted_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None

    @property
    def prompt_len(self) -> int:
        """Prompt tokens."""
        return len(self.group.prompt.prompt_ids)

    @property
    def generated(self) -> int:
        """Response tokens so far."""
        return len(self.response_ids)

    @property
    def total_len(self) -> int:
        """Prompt and response tokens: the input length of the next chunk."""
        return self.prompt_len + self.generated

    @property
    def remaining(self) -> int:
        """Response tokens still allowed."""
        return self.max_response_len - self.generated

    @property
    def refusals(self) -> list[str]:
        """The answers of the engines that have refused the request."""
        return [str(e) for e in self.setbacks.values() if isinstance(e, RequestRejected)]

    def append(self, reply: ChunkReply) -> None:
        """The one place where a request grows: ids, logprobs and versions together."""
        spanned = sum(span.tokens for span in reply.weight_spans)
        if not len(reply.ids) == len(reply.logprobs) == spanned:
            raise ValueError(
                f"chunk of {self.uid}: {len(reply.ids)} ids, {len(reply.logprobs)} logprobs and "
                f"weight versions for {spanned} tokens"
            )
        self.response_ids.extend(reply.ids)
        self.logprobs.extend(reply.logprobs)
        for span in reply.weight_spans:
            last = self.weight_spans[-1] if self.weight_spans else None
            if last is not None and last.version == span.version:
                self.weight_spans[-1] = WeightSpan(span.version, last.tokens + span.tokens)
            elif span.tokens:
                self.weight_spans.append(span)
        self.verify_steps += reply.verify_steps

    def finish(self, reason: FinishReason, matched: int | str | None, now: float) -> None:
        """Close the trajectory. A finished request never changes again."""
        if self.state is RequestState.FINISHED:
            raise ValueError(f"request {self.uid} finished twice")
        self.state = RequestState.FINISHED
        self.finish_reason, self.matched, self.finished_at = reason, matched, now


class Group(msgspec.Struct, kw_only=True, eq=False, weakref=True):
    """One prompt, how it is sampled, and its n requests.

    `uid` tells groups apart to which different callers gave equal ids. While a group is `growing`,
    requests may be added; it is complete once it does not grow and all of them are finished.
    `samples` grows as requests finish. A withdrawn group is never sent again; see `failure`.
    """

    group_id: str
    uid: str
    prompt: Prompt
    sampling: Sampling = Sampling()
    requests: list[Request] = msgspec.field(default_factory=list)
    samples: list["Sample"] = msgspec.field(default_factory=list)
    caller: str = ""  # who waits for it: callers share the engines fairly
    growing: bool = False
    withdrawn: bool = False
    failure: Failure | None = None
    continues: bool = True  # another chunk can continue an unfinished request

    def __post_init__(self) -> None:
        self.continues = not self.sampling.undivided_because()

    @property
    def complete(self) -> bool:
        """Whether all trajectories are finished, and no other one will come."""
        return not self.growing and all(
            request.state is RequestState.FINISHED for request in self.requests
        )


class Chunk(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One `/generate` call: a request, its engine and its token budget."""

    request: Request
    engine_id: str
    rid: str
    max_new_tokens: int
    kv_tokens: int  # what the ledger reserved for it on the engine
    move: Move
    migrated: bool  # the request's previous chunk ran on another engine
    number: int = 0  # counts the chunks that the engine was sent
    whole: bool = False  # it must end the request, which cannot be continued by another one

    @property
    def input_len(self) -> int:
        """Tokens of the prompt and of the response so far."""
        return self.kv_tokens - self.max_new_tokens

    def ended_by(self, reply: ChunkReply) -> bool:
        """Whether a chunk that may take all tokens left ends its request with this reply."""
        full = len(reply.ids) >= self.max_new_tokens
        return reply.finish == "stop" or (reply.finish == "length" and full)


class ChunkResult(msgspec.Struct, kw_only=True, frozen=True):
    """How a chunk ended: a reply, or an error (then nothing is appended).

    A reply that leaves a whole chunk unfinished becomes an error here, before anybody counts its
    tokens: the state they were sampled with (grammar, penalties) is gone with the call. Unless the
    request's caller asked for what there is. `recalled`: the driver ended the chunk early.
    """

    chunk: Chunk
    now: float  # seconds on the rollout's clock
    reply: ChunkReply | None = None
    error: Exception | None = None
    recalled: bool = False

    def __post_init__(self) -> None:
        chunk, reply = self.chunk, self.reply
        if reply is None:
            return
        kind: type[EngineError]
        what = "a request that cannot be continued"
        if self.recalled and reply.finish == "abort" and not reply.ids:
            kind, what = ChunkRecalled, "a chunk that was taken back"
        elif not chunk.whole or chunk.ended_by(reply) or chunk.request.aborting:
            return
        elif reply.finish != "abort":
            kind = EngineUnavailable
        else:
            kind = ChunkRecalled if self.recalled else ChunkAborted
        tokens = f"{len(reply.ids)} of {chunk.max_new_tokens} tokens"
        error = kind(
            f"engine {chunk.engine_id}: {what} ended ({reply.finish}) after {tokens}",
            engine_id=chunk.engine_id,
        )
        msgspec.structs.force_setattr(self, "reply", None)
        msgspec.structs.force_setattr(self, "error", error)


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an engine that is up (SGLang `/server_info`)."""

    engine_id: str
    url: str
    sglang_version: str
    model_path: str
    max_total_num_tokens: int  # KV capacity, tokens
    max_running_requests: int
    max_request_len: int  # longest prompt + response it takes, tokens
    page_size: int
    radix_cache: bool  # siblings share the KV of their prompt
    weight_version: str
    deterministic: bool
    has_tokenizer: bool
    plugin: str | None  # version of our plugin inside it; None in a stock server
    instance: str | None = None  # a name for this start of the server
    weights: str | None = None  # the plugin's name for what is loaded; equal weights, equal names
    pool: str | None = None  # namespace of its pages in a KV pool; equal names share pages
    kv_bytes_per_token: int = 0  # in the pool, all ranks together
    draft_tokens: int = 0  # KV slots a request may need beyond its tokens, for its drafts
    pipeline_stages: int = 1  # SGLang's pp_size
    vocab_size: int | None = None  # token ids it may return; None: it does not report it


class EngineWork(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine has computed since it started. `prefilled_tokens`: input tokens found in no
    cache, those of a preempted request again."""

    forward_steps: int
    prefilled_tokens: int


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of an engine's life (SGLang `/v1/loads`). `progress` changes while it works.

    `requests`: running or waiting, of any user; None where SGLang does not count all of them.
    """

    used_tokens: int
    progress: tuple[Any, ...]
    requests: int | None = None
    prefilled_tokens: int = 0  # since the engine started


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The finished record: what training needs, and how it was made.

    `rollout_log_probs[i]` is the log probability of `response_ids[i]` under the sampling
    distribution (log-softmax of logits / temperature, before top-p and top-k). Times are seconds
    since the start of the rollout.
    """

    rollout_id: str
    group_id: str
    index: int
    prompt_ids: "array[int]"
    response_ids: "array[int]"
    response_length: int
    rollout_log_probs: "array[float]"
    finish_reason: FinishReason
    matched: int | str | None
    weight_version: str  # of the last token
    weight_spans: list[WeightSpan]
    text: str | None
    seed: int
    chunks: int
    engines: list[str]
    accept_length: float | None
    submitted_at: float
    started_at: float
    finished_at: float
    metadata: Any = None
