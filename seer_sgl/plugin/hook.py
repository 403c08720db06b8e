"""The type of a hook, and the names of SGLang's classes that have several."""

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


# Classes with several hooks, and names that do not fit into one line with their function.
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
REQ = "sglang.srt.managers.schedule_batch.Req"
RESULTS = (
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
)
LOADS = "sglang.srt.managers.scheduler_components.load_inquirer.SchedulerLoadInquirer"
UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
HOST_POOL = "sglang.srt.mem_cache.pool_host.mha.MHATokenToKVPoolHost"
ALLOCATOR = "sglang.srt.mem_cache.allocator.paged.PagedTokenToKVPoolAllocator"
SAMPLING = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
TORCH_NATIVE = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
TRANSFER = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"
