"""What a request of SGLang 0.5.21 may contain, with SGLang's own types. Pure.

SGLang's HTTP process checks few of these types, and its scheduler decodes all of them: one value of
another type crashes the scheduler. So this is a list of what is allowed: `GenerateReqInput` and
`SamplingParams` without the fields that SGLang sets itself.
"""

import re
from typing import Annotated, Any, Literal

import msgspec

from seer_sgl.bounds import LARGEST_ID, CustomParams, Int64, Real, TokenId

from .sampling import Reason

Int32 = Annotated[int, msgspec.Meta(ge=-LARGEST_ID, le=LARGEST_ID)]
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_ID)]
Ids = list[Int32]
# SGLang compares the end of a response with every stop string at each token.
LONGEST_STOP = 4096
Stop = Annotated[str, msgspec.Meta(max_length=LONGEST_STOP)]
HEALTH_CHECK = "HEALTH_CHECK"  # begins the names of SGLang's own probes, which get no answer
Name = Annotated[str, msgspec.Meta(max_length=4096)]


class SamplingFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`SamplingParams` (sampling/sampling_params.py)."""

    max_new_tokens: Count | None = None
    stop: Stop | list[Stop] | None = None
    stop_token_ids: Ids | None = None
    stop_regex: Stop | list[Stop] | None = None
    temperature: Real | None = None
    top_p: Real | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=LARGEST_ID)] | None = None
    min_p: Real | None = None
    frequency_penalty: Real | None = None
    presence_penalty: Real | None = None
    repetition_penalty: Real | None = None
    min_new_tokens: Count | None = None
    n: AtLeastOne | None = None
    beam_width: AtLeastOne | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    stream_interval: AtLeastOne | None = None
    logit_bias: dict[str, Real] | None = None
    sampling_seed: Int64 | None = None
    custom_params: CustomParams | None = None


class SessionFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`SessionParams` (managers/io_struct.py)."""

    id: str | None = None
    rid: Name | None = None
    offset: Int32 | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


class GenerateFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`GenerateReqInput` (managers/io_struct.py), and our own fields of `/generate`."""

    text: str | list[str] | None = None
    input_ids: list[TokenId | list[TokenId]] | None = None
    input_embeds: list[list[float | list[float]]] | None = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    mm_content_hashes: list[str | list[str | None] | None] | None = None
    use_audio_in_video: bool | None = None
    video_config: dict[str, Any] | None = None
    sampling_params: SamplingFields | list[SamplingFields] | None = None
    rid: Name | list[Name] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: Int32 | list[Int32] | None = None
    top_logprobs_num: Count | list[Count] | None = None
    token_ids_logprob: list[Int32 | Ids] | None = None
    return_sampling_mask: bool | list[bool] | None = None
    sampling_logprobs_mode: (
        Literal["selected", "support"] | list[Literal["selected", "support"] | None] | None
    ) = None
    return_text_in_logprobs: bool | None = None
    return_flat_raw_top_logprobs: bool | None = None
    return_flat_raw_top_logprobs_b64: bool | None = None
    stream: bool | None = None
    log_metrics: bool | None = None
    return_hidden_states: bool | Literal["last"] | list[bool | Literal["last"]] | None = None
    return_routed_experts: bool | None = None
    routed_experts_start_len: Count | None = None
    return_indexer_topk: bool | None = None
    modalities: list[str] | None = None
    session_id: str | int | None = None
    session_params: SessionFields | None = None
    lora_path: str | list[str | None] | None = None
    custom_logit_processor: str | list[str | None] | None = None
    routed_dp_rank: Int32 | None = None
    data_parallel_rank: Int32 | None = None
    routing_key: str | None = None
    conversation_id: str | None = None
    background: bool | None = None
    require_reasoning: bool | None = None
    max_thinking_tokens: Count | None = None
    priority: Int32 | None = None
    extra_key: str | list[str] | None = None
    cache_salt: str | list[str] | None = None
    no_logs: bool | None = None
    custom_labels: dict[str, str] | None = None
    return_entropy: bool | None = None
    return_prompt_token_ids: bool | None = None
    max_dynamic_patch: Int32 | None = None
    min_dynamic_patch: Int32 | None = None
    image_max_dynamic_patch: Int32 | None = None
    video_max_dynamic_patch: Int32 | None = None
    images_config: dict[str, Any] | None = None
    group_id: str | int | list[str | int] | None = None
    group_size: AtLeastOne | None = None


# Fields for SGLang's own processes and for a router of prefill and decode engines.
INTERNAL = (
    *("lora_id", "positional_embed_overrides", "http_worker_ipc", "return_bytes", "kv_hints"),
    *("bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key"),
    *("decode_tp_size", "disagg_prefill_dp_rank", "need_wait_for_mm_inputs", "encoder_urls"),
    *("num_items_assigned", "multi_item_delimiter_indices", "token_indices_to_pool"),
)
# Fields with a trace or a time of another process, and names of images: SGLang finds the KV of an
# image by a name that a client gives, whatever the image. Engines do without them.
DROPPED = ("received_time", "external_trace_header", "mm_hashes")
# Fields of which a batch may have one value per prompt, and a single prompt may not.
PER_PROMPT = (
    *("rid", "return_logprob", "logprob_start_len", "top_logprobs_num", "return_sampling_mask"),
    *("sampling_logprobs_mode", "return_hidden_states", "lora_path", "custom_logit_processor"),
    *("extra_key", "cache_salt", "sampling_params"),
)
# Fields of which a batch must have one value per prompt if it has a list.
PER_PROMPT_OF_BATCH = ("image_data", "video_data", "audio_data", "modalities")
PLACE = re.compile(r" - at `\$(?P<place>[^`]*)`$")
UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)


def mistyped(error: msgspec.ValidationError) -> Reason:
    """Returns what msgspec found wrong in a request, by the name of the field or parameter."""
    reason = PLACE.sub("", str(error))
    unknown = UNKNOWN.fullmatch(reason)
    if unknown is not None:
        return Reason(unknown["name"][:80], "unknown to this server, which serves SGLang 0.5.21")
    found = PLACE.search(str(error))
    names = re.findall(r"\w+", re.sub(r"\[[^\]]*\]", "", found["place"])) if found else []
    reason = reason.replace("`", "")
    return Reason(names[-1] if names else "the body", f"{reason[0].lower()}{reason[1:]}")
