"""The members of SGLang's objects that the plugin reads and writes: the checklist of an upgrade.

The docstring of a Protocol is the dotted name of the class in SGLang 0.5.21, or the names of all
classes that define its members. `python -m tests.plugin.upgrade` looks every member up in the
sources of SGLang. Members `seer_*` are the plugin's own.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch  # heavy, and not to be imported before cpu.prepare()


class SglModelConfig(Protocol):
    """sglang.srt.configs.model_config.ModelConfig"""

    vocab_size: int
    context_len: int
    hidden_size: int
    dtype: torch.dtype
    hf_config: Any  # transformers' PretrainedConfig
    hf_text_config: Any
    quantization: str | None
    model_is_mrope: bool
    is_local_attention_model: bool
    is_image_understandable_model: bool


class SglSamplingParams(Protocol):
    """sglang.srt.sampling.sampling_params.SamplingParams"""

    custom_params: dict[str, Any] | None
    max_new_tokens: int
    min_new_tokens: int
    stop_strs: Sequence[str]
    stop_str_max_len: int
    stop_regex_strs: Sequence[str]


class SglReqKv(Protocol):
    """sglang.srt.managers.schedule_batch.ReqKvInfo"""

    req_pool_idx: int | None


class SglReq(Protocol):
    """sglang.srt.managers.schedule_batch.Req"""

    rid: str
    origin_input_ids: array[int]
    output_ids: array[int]
    sampling_params: SglSamplingParams
    extra_key: str | None
    cache_salt: str | None
    lora_id: str | None
    cache_request_handle: object
    skip_radix_cache_insert: bool
    finished_len: int | None
    finished_reason: object | None
    to_finish: object | None
    grammar: Any | None
    retracted_stain: bool
    customized_info: dict[str, list[Any]] | None
    return_routed_experts: bool
    routed_experts_start_len: int
    routed_experts: torch.Tensor | None
    output_ids_through_stop: array[int]
    input_embeds: list[list[float]] | None
    kv: SglReqKv
    seer_own: tuple[str | None, bool]  # its own extra_key and skip_radix_cache_insert
    seer_rows: Any  # the KeptRows of routed experts
    seer_open: bool  # its grammar had not ended before the step

    def finished(self) -> bool: ...
    def get_fill_ids(self) -> Sequence[int]: ...


class SglForwardMode(Protocol):
    """sglang.srt.model_executor.forward_batch_info.ForwardMode"""

    def is_extend(self) -> bool: ...
    def is_decode(self) -> bool: ...
    def is_target_verify(self) -> bool: ...


class SglPenalizer(Protocol):
    """sglang.srt.sampling.penaltylib.orchestrator._BatchedPenalizer"""

    def is_prepared(self) -> bool: ...


class SglMinNewTokens(Protocol):
    """sglang.srt.sampling.penaltylib.min_new_tokens.BatchedMinNewTokensPenalizer"""

    len_output_tokens: torch.Tensor
    stop_token_penalties: torch.Tensor


class SglFrequencyPenalty(Protocol):
    """sglang.srt.sampling.penaltylib.frequency_penalty.BatchedFrequencyPenalizer"""

    frequency_penalties: torch.Tensor
    cumulated_frequency_penalties: torch.Tensor


class SglPresencePenalty(Protocol):
    """sglang.srt.sampling.penaltylib.presence_penalty.BatchedPresencePenalizer"""

    presence_penalties: torch.Tensor
    cumulated_presence_penalties: torch.Tensor


class SglRepetitionPenalty(Protocol):
    """sglang.srt.sampling.penaltylib.repetition_penalty.BatchedRepetitionPenalizer"""

    repetition_penalties: torch.Tensor
    cumulated_repetition_penalties: torch.Tensor


class SglPenalizers(Protocol):
    """sglang.srt.sampling.penaltylib.orchestrator.BatchedPenalizerOrchestrator"""

    is_required: bool
    penalizers: Mapping[type, SglPenalizer]


class SglSamplingInfo(Protocol):
    """sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"""

    device: str
    temperatures: torch.Tensor
    top_ps: torch.Tensor
    top_ks: torch.Tensor
    min_ps: torch.Tensor
    sampling_seed: torch.Tensor | None
    logit_bias: torch.Tensor | None
    penalizer_orchestrator: SglPenalizers
    acc_additive_penalties: torch.Tensor | None
    acc_scaling_penalties: torch.Tensor | None
    grammars: Sequence[Any] | None
    has_custom_logit_processor: bool
    sampling_mask_batch_indices: torch.Tensor | None
    grammar_mask: Any
    seer_stops: torch.Tensor | None  # the stop tokens of requests with `min_new_tokens`

    def update_regex_vocab_mask(self) -> None: ...
    def apply_logits_bias(self, logits: torch.Tensor, /) -> None: ...


class SglReqToTokenPool(Protocol):
    """sglang.srt.mem_cache.memory_pool.ReqToTokenPool"""

    req_to_token: torch.Tensor


class SglVerifyInput(Protocol):
    """sglang.srt.speculative.ngram_info.NgramVerifyInput"""

    draft_token_num: int
    custom_mask: torch.Tensor
    accept_tokens: torch.Tensor
    accept_lens: torch.Tensor


class SglScheduleBatch(Protocol):
    """sglang.srt.managers.schedule_batch.ScheduleBatch"""

    reqs: list[SglReq]
    forward_mode: SglForwardMode
    extend_num_tokens: int | None
    decoding_reqs: list[SglReq] | None  # of `reqs`, those of a prefill that decode in it
    sampling_info: SglSamplingInfo
    spec_info: SglVerifyInput | None
    has_grammar: bool
    req_to_token_pool: SglReqToTokenPool
    req_pool_indices: torch.Tensor
    input_ids: torch.Tensor
    out_cache_loc: torch.Tensor
    seq_lens: torch.Tensor
    seq_lens_cpu: torch.Tensor
    seq_lens_sum: int | None
    orig_seq_lens: torch.Tensor
    return_logprob: bool
    top_logprobs_nums: list[int] | None
    token_ids_logprobs: list[list[int]] | None
    prefix_lens: list[int] | None
    extend_lens: list[int] | None
    batch_is_full: bool
    launch_ts: float | None
    seer_count: Callable[[SglScheduleBatch], None] | None  # the delayed count of penalties


class SglTreeCore(Protocol):
    """sglang.srt.mem_cache.unified_cache.unified_tree_core.UnifiedTreeCore"""

    is_eagle: bool


class SglRadixCache(Protocol):
    """sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"""

    page_size: int
    tree_core: SglTreeCore
    ongoing_write_through: Mapping[Any, Any]
    ongoing_backup: Mapping[Any, Any]
    ongoing_prefetch: Mapping[Any, Any]
    cache_controller: SglController

    def release_aborted_request(self, handle: Any, /) -> None: ...


class SglWeightUpdater(Protocol):
    """sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"""

    offload_tags: set[str]
    tp_cpu_group: Any  # torch's ProcessGroup


class SglScheduler(Protocol):
    """sglang.srt.managers.scheduler.Scheduler"""

    model_config: SglModelConfig
    device: str
    forward_stream: Any  # torch's Stream of the steps
    forward_ct: int
    waiting_queue: list[SglReq]
    running_batch: SglScheduleBatch
    chunked_req: SglReq | None
    result_queue: deque[Any]
    tree_cache: SglRadixCache
    weight_updater: SglWeightUpdater
    tp_worker: SglTargetWorker
    req_to_token_pool: SglReqToTokenPool
    server_args: SglServerArgs

    def collect_inflight_reqs(self) -> set[SglReq]: ...


class SglPoolStats(Protocol):
    """sglang.srt.managers.scheduler_components.pool_stats_observer.SchedulerPoolStatsObserver"""

    tree_cache: SglRadixCache


class SglLoadInquirer(Protocol):
    """sglang.srt.managers.scheduler_components.load_inquirer.SchedulerLoadInquirer"""

    pool_stats_observer: SglPoolStats
    get_running_batch: Callable[[], SglScheduleBatch]
    get_waiting_queue: Callable[[], list[SglReq]]


class SglTransferCounts(Protocol):
    """sglang.srt.managers.load_snapshot.DisaggregationMetrics"""

    decode_transfer_queue_reqs: int


class SglLoadSnapshot(Protocol):
    """sglang.srt.managers.load_snapshot.LoadSnapshot"""

    disaggregation: SglTransferCounts | None


class SglInternalState(Protocol):
    """sglang.srt.managers.io_struct.GetInternalStateReqOutput"""

    internal_state: dict[str, Any]


class SglHostPool(Protocol):
    """sglang.srt.mem_cache.pool_host.mha.MHATokenToKVPoolHost"""

    dtype: torch.dtype
    layout: str
    page_size: int
    logical_page_size: int  # of all ranks that share a page
    size_per_token: int
    head_num: int
    head_dim: int
    k_buffer: torch.Tensor
    v_buffer: torch.Tensor


class SglKVPool(Protocol):
    """sglang.srt.mem_cache.memory_pool.MHATokenToKVPool"""

    k_buffer: list[torch.Tensor]
    v_buffer: list[torch.Tensor]

    def get_key_buffer(self, layer_id: int) -> torch.Tensor: ...
    def get_value_buffer(self, layer_id: int) -> torch.Tensor: ...
    def set_kv_buffer(self, layer: Any, loc_info: Any, k: Any, v: Any, /) -> None: ...


class SglWatchedStore(Protocol):
    """sglang.srt.mem_cache.hicache_storage.HiCacheStorage as watched_store.py derives it."""

    def seer_stored(self, keys: list[str], /) -> int: ...


class SglController(Protocol):
    """sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController"""

    enable_storage: bool
    storage_stop_event: Event
    prefetch_thread: Thread
    prefetch_io_aux_thread: Thread
    prefetch_sync_thread: Thread
    backup_thread: Thread


class SglPoolTransfer(Protocol):
    """sglang.srt.mem_cache.hicache_storage.PoolTransfer"""

    name: Any
    keys: Sequence[str] | None


class SglStorageConfig(Protocol):
    """sglang.srt.mem_cache.hicache_storage.HiCacheStorageConfig"""

    model_name: str | None
    tp_size: int
    tp_rank: int
    pp_size: int
    pp_rank: int


class SglMooncakeStore(Protocol):
    """sglang.srt.mem_cache.storage.mooncake_store.mooncake_store.MooncakeStore"""

    store: Any  # Mooncake's own MooncakeDistributedStore
    is_mla_backend: bool
    mla_suffix: str
    mha_suffix: str | list[str]

    def _tag_keys(self, keys: list[str], /) -> list[str]: ...


class SglFileStore(Protocol):
    """sglang.srt.mem_cache.hicache_storage.HiCacheFile"""

    file_path: str

    def _get_suffixed_key(self, key: str, /) -> str: ...


class SglAllocator(Protocol):
    """sglang.srt.mem_cache.allocator.paged.PagedTokenToKVPoolAllocator"""

    page_size: int
    device: str
    free_pages: torch.Tensor

    def merge_and_sort_free(self) -> None: ...


class SglForwardBatch(Protocol):
    """sglang.srt.model_executor.forward_batch_info.ForwardBatch"""

    forward_mode: SglForwardMode
    spec_info: SglVerifyInput
    seq_lens: torch.Tensor
    req_pool_indices: torch.Tensor
    out_cache_loc: torch.Tensor


class SglAttentionLayer(Protocol):
    """sglang.srt.layers.radix_attention.RadixAttention"""

    layer_id: int
    tp_q_head_num: int
    tp_k_head_num: int
    qk_head_dim: int
    v_head_dim: int
    scaling: float
    sliding_window_size: int | None


class SglTorchNative(Protocol):
    """sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"""

    req_to_token_pool: SglReqToTokenPool
    token_to_kv_pool: SglKVPool
    swa_out_cache_loc: torch.Tensor | None
    seer_trees: Any  # of a verification (cpu/tree_attention.py)
    seer_masks: dict[tuple[int, int | None], list[torch.Tensor]]


class SglLogits(Protocol):
    """sglang.srt.layers.logits_processor.LogitsProcessorOutput"""

    next_token_logits: torch.Tensor
    next_token_logprobs: torch.Tensor
    next_token_top_logprobs_val: Any  # list or tensor, like the three below
    next_token_top_logprobs_idx: Any
    next_token_token_ids_logprobs_val: Any
    next_token_token_ids_logprobs_idx: Any


class SglHostRows(Protocol):
    """sglang.srt.state_capturer.base.BaseHostCache"""

    buffer: torch.Tensor  # int32 [slots, layers, top_k]


class SglCapturer(Protocol):
    """sglang.srt.state_capturer.routed_experts.RoutedExpertsCapturer"""

    num_layers: int
    topk_size: int
    host_cache: SglHostRows


class SglCaptured(Protocol):
    """sglang.srt.state_capturer.base.TopkCaptureOutput"""

    topk: torch.Tensor  # a row per token of the step, on the host once it is copied


class SglResultProcessor(Protocol):
    """sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"""

    req_to_token_pool: SglReqToTokenPool


class SglResult(Protocol):
    """sglang.srt.managers.utils.GenerationBatchResult"""

    logits_output: SglLogits
    next_token_ids: torch.Tensor
    can_run_cuda_graph: bool
    copy_done: Any
    routed_experts_output: SglCaptured | None


class SglForward(Protocol):
    """sglang.srt.model_executor.model_runner.ModelRunnerOutput"""

    logits_output: SglLogits


class SglModelRunner(Protocol):
    """sglang.srt.model_executor.model_runner.ModelRunner"""

    device: str
    model: torch.nn.Module
    model_config: SglModelConfig
    max_running_requests: int
    max_total_num_tokens: int
    req_to_token_pool: SglReqToTokenPool
    server_args: SglServerArgs
    spec_algorithm: Any
    attn_backend: Any
    decode_cuda_graph_runner: Any  # None with CUDA graphs disabled
    prefill_attention_backend_str: str
    decode_attention_backend_str: str
    sliding_window_size: int | None
    use_mla_backend: bool
    sampler: Callable[..., torch.Tensor]

    def forward(self, forward_batch: Any, /) -> SglForward: ...
    def _get_attention_backend(self, init_new_workspace: bool) -> Any: ...


class SglTargetWorker(Protocol):
    """sglang.srt.managers.tp_worker.TpModelWorker"""

    model_runner: SglModelRunner

    def get_memory_pool(self) -> tuple[Any, Any]: ...
    def forward_batch_generation(
        self, batch: SglScheduleBatch, /, *, is_verify: bool = False
    ) -> SglResult: ...


class SglServerArgs(Protocol):
    """sglang.srt.server_args.ServerArgs

    It collects the fields of these classes:
    sglang.srt.arg_groups.fields.device.Device
    sglang.srt.arg_groups.fields.disagg.Disagg
    sglang.srt.arg_groups.fields.exec_.ExecDeterministic
    sglang.srt.arg_groups.fields.exec_.ExecFeatures
    sglang.srt.arg_groups.fields.memory.Memory
    sglang.srt.arg_groups.fields.parallel.Parallel
    sglang.srt.arg_groups.fields.schedule.Schedule
    sglang.srt.arg_groups.fields.serving.Serving
    sglang.srt.arg_groups.fields.spec.Spec
    """

    api_key: str | None
    admin_api_key: str | None
    ssl_keyfile_password: str | None
    hicache_storage_backend: str | None
    device: str
    tp_size: int
    pp_size: int
    dp_size: int
    enable_dp_attention: bool
    disaggregation_mode: str
    enable_return_hidden_states: bool
    speculative_algorithm: str | None
    disable_overlap_schedule: bool
    enable_mixed_chunk: bool
    speculative_eagle_topk: int
    speculative_num_steps: int
    speculative_num_draft_tokens: int | None
    enable_deterministic_inference: bool

    def url(self) -> str: ...


class SglGenerateReq(Protocol):
    """sglang.srt.managers.io_struct.GenerateReqInput"""

    input_ids: Any  # list[int] for one prompt
    input_embeds: Any  # list[list[float]] for one prompt
    image_data: Any
    sampling_params: dict[str, Any]
    seer_response: list[int]  # the part of its input that is response


class SglProcessed(Protocol):
    """sglang.srt.managers.schedule_batch.MultimodalProcessorOutput"""

    input_ids: list[int] | None
    padded_input_ids: list[int] | None
    mrope_positions: torch.Tensor | None  # [3, tokens]
    mrope_position_delta: torch.Tensor | None


class SglTokenized(Protocol):
    """sglang.srt.managers.io_struct.TokenizedGenerateReqInput"""


class SglTokenizerManager(Protocol):
    """sglang.srt.managers.tokenizer_manager.TokenizerManager"""

    model_config: SglModelConfig


class SglBatchOutput(Protocol):
    """sglang.srt.managers.io_struct.BatchStrOutput"""

    output_token_sampling_mask: list[Any] | None  # None for requests that have not asked


class SglPrefillAdder(Protocol):
    """sglang.srt.managers.schedule_policy.PrefillAdder"""

    can_run_list: list[SglReq]  # of the next batch


class SglImages(Protocol):
    """sglang.srt.managers.schedule_batch.MultimodalInputs"""

    def release_features(self) -> None: ...
