"""The type of a hook, and the names of the SGLang classes and modules that are hooked."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

# The values of SGLang's HookType. `before` may change the arguments. `after` receives the result as
# its first argument and may return another one. `around` receives SGLang's own function as its
# first argument and may call it. `replace` is called instead of SGLang's function.
Kind = Literal["before", "after", "around", "replace"]


class Hook(NamedTuple):
    """One place of SGLang where the plugin acts. `target`: the dotted name of a function or method.

    `why`: one sentence about SGLang's own behaviour and the reason to change or observe it.
    `until`: one about an SGLang (or a Mooncake) that needs the hook no more.
    """

    target: str
    function: Callable[..., Any]
    kind: Kind
    why: str
    until: str


# Classes whose methods are hooked.
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"
TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
REQ = "sglang.srt.managers.schedule_batch.Req"
RESULTS = (
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
)
LOADS = "sglang.srt.managers.scheduler_components.load_inquirer.SchedulerLoadInquirer"
COMMUNICATOR = "sglang.srt.managers.communicator.FanOutCommunicator"
DISPATCHER = "sglang.utils.TypeBasedDispatcher"
UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
STORES = "sglang.srt.mem_cache.storage.backend_factory.StorageBackendFactory"
MOONCAKE = "sglang.srt.mem_cache.storage.mooncake_store.mooncake_store.MooncakeStore"
HOST_POOL = "sglang.srt.mem_cache.pool_host.mha.MHATokenToKVPoolHost"
CAPTURER = "sglang.srt.state_capturer.routed_experts.RoutedExpertsCapturer"
ALLOCATOR = "sglang.srt.mem_cache.allocator.paged.PagedTokenToKVPoolAllocator"
SAMPLING = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
SERVER_ARGS = "sglang.srt.server_args.ServerArgs"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
RUNNERS = "sglang.srt.model_executor.runner.base_runner.BaseRunner"
TORCH_NATIVE = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"

# Modules whose functions are hooked.
SCHEDULE_BATCH = "sglang.srt.managers.schedule_batch"
SAMPLER = "sglang.srt.layers.sampler"
BOOTSTRAP = "sglang.srt.distributed.bootstrap"
GROUPS = "sglang.srt.distributed.parallel_state"
TRANSFER = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"
NATIVE_HASH = "sglang.srt.mem_cache.cpp_utils.native_hash"
KV_ROWS = "sglang.srt.mem_cache.common"
KV_SIZES = "sglang.srt.mem_cache.kv_cache_configurator"
GRAPHS = "sglang.srt.model_executor.runner.base_cuda_graph_runner"
MEMORY = "sglang.srt.arg_groups.memory_hook"
