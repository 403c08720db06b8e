"""The types of replies, as clients see them."""

from typing import Any, NotRequired, TypedDict


class WeightVersion(TypedDict):
    """The tokens from `start` to `end`, generated with one weight version."""

    version: str
    start: int
    end: int


class SeerInfo(TypedDict):
    """What this server adds: the path of a response through the fleet."""

    chunks: int
    """Calls to engines."""
    engines: list[str]
    """The engine of each chunk."""
    group: str
    """Name of the group of siblings."""
    reused_tokens: int
    """Input tokens of later chunks whose KV was reused."""
    recomputed_tokens: int
    """Input tokens of later chunks whose KV was computed again."""


class MetaInfo(TypedDict):
    """SGLang's `meta_info`, over all chunks of a response."""

    id: str
    """The request's `rid`."""
    finish_reason: dict[str, Any] | None
    """`type`: stop, length or abort; null while the response grows."""
    prompt_tokens: int
    completion_tokens: int
    weight_version: NotRequired[str]
    num_retractions: NotRequired[int]
    input_token_logprobs: NotRequired[list[Any] | None]
    output_token_logprobs: NotRequired[list[Any]]
    """With `return_logprob`: [logprob, token id, text or null] per token."""
    output_token_logprobs_length: NotRequired[int]
    reasoning_tokens: NotRequired[int]
    cached_tokens: NotRequired[int]
    """Prompt tokens whose KV was cached, of the first chunk."""
    cached_tokens_details: NotRequired[dict[str, Any] | None]
    dp_rank: NotRequired[int | None]
    weight_versions: NotRequired[list[WeightVersion]]
    e2e_latency: NotRequired[float]
    """Seconds."""
    response_sent_to_client_ts: NotRequired[float]
    """Seconds since 1970; in a stream, of the first event only."""
    spec_verify_ct: NotRequired[int]
    spec_accept_length: NotRequired[float]
    seer: NotRequired[SeerInfo]
    """Missing in the reply to a request that was sent to an engine as it is."""


class GenerateReply(TypedDict):
    """SGLang's reply of `/generate`; in a stream, the whole response so far."""

    text: NotRequired[str]
    output_ids: NotRequired[list[int]]
    meta_info: MetaInfo
    index: NotRequired[int]
    """In a stream: the position of the response in the batch."""


class StreamError(TypedDict):
    """An error inside a stream."""

    error: "StreamErrorFields"


class StreamErrorFields(TypedDict):
    """SGLang's fields of an error inside a stream."""

    message: str
    type: str
    code: int
    retryable: bool


class ModelInfo(TypedDict):
    """SGLang's description of the model."""

    model_path: str
    weight_version: str


class Model(TypedDict):
    """One model of `/v1/models`."""

    id: str | None
    object: str
    created: int
    owned_by: str
    root: str | None
    parent: str | None
    max_model_len: int


class Models(TypedDict):
    """The reply of `/v1/models`."""

    object: str
    data: list[Model]


class Loads(TypedDict):
    """SGLang's reply of `/v1/loads`, with an entry per engine."""

    loads: list[dict[str, Any]]
