"""The draft widths of an engine, the CUDA graphs that verify them, and the memory of both.

A graph per width and batch size costs time at the start and memory outside the KV cache. A wide
draft of many requests verifies thousands of nodes, where the launches that a graph saves no longer
matter. So GPUs verify few widths, and graphs of wide drafts are for few requests.
"""

from collections.abc import Sequence
from typing import Any

from seer_sgl.link.contract import ALGORITHM
from seer_sgl.plugin.hook import RUNNER, Hook
from seer_sgl.plugin.sglang_types import SglModelRunner, SglServerArgs

WIDE = 5  # nodes per request; of wider drafts
WIDE_REQUESTS = 64  # the graphs are for so many requests at most
GPU_STEP, CPU_STEP = 4, 2  # factor between the numbers of draft tokens of two widths
SAMPLING_BYTES = 2 << 30  # node_sampler.py works in parts of 1 GiB; sorted probabilities take more


def widths(stride: int, gpu: bool) -> list[int]:
    """Returns the widths of a verification: 1 (plain decoding), then 1 + 2, 1 + 4, ..., stride.

    On a GPU 1, 1 + 4, 1 + 16, ..., stride.
    """
    if stride == 1:
        return [1]
    step, most = GPU_STEP if gpu else CPU_STEP, stride - 1
    drafts = [step]
    while drafts[-1] * step < most:
        drafts.append(drafts[-1] * step)
    return [1, *(1 + count for count in drafts if count < most), stride]


def requests_of(width: int, requests: int) -> int:
    """Returns the most requests in a graph of `width`. requests: in the largest graph."""
    return requests if width <= WIDE else min(requests, WIDE_REQUESTS)


def most_nodes(all_widths: Sequence[int], requests: int) -> int:
    """Returns the nodes of the largest graph. requests: in the largest graph."""
    return max(width * requests_of(width, requests) for width in all_widths)


def graph_bytes(all_widths: Sequence[int], requests: int, context: int, vocab_size: int) -> int:
    """Returns the memory beside the KV cache that drafting needs on a GPU with deterministic
    inference: slots per request and their copies, masks of all widths, logits, sampling.

    requests: in the largest graph. context: tokens of the longest one.
    """
    slots = 8 * requests * context
    masks = sum(width * requests_of(width, requests) * (context + width) for width in all_widths)
    logits = 4 * vocab_size * most_nodes(all_widths, requests)
    return 3 * slots + masks + logits + SAMPLING_BYTES


def largest(runner: SglModelRunner) -> int:
    """Returns the requests in the largest graph. CUDA graphs must be enabled."""
    from sglang.srt.model_executor.runner.base_cuda_graph_runner import get_batch_sizes_to_capture

    return int(max(get_batch_sizes_to_capture(runner, 1)[0]))


def hooks() -> list[Hook]:
    return [
        Hook(
            "sglang.srt.model_executor.runner.base_cuda_graph_runner.get_batch_sizes_to_capture",
            few_wide_graphs,
            "after",
            "SGLang captures a graph per batch size and draft width; wide drafts of many requests "
            "are verified without one.",
            "Batch sizes can be set per number of draft tokens.",
        ),
        Hook(
            f"{RUNNER}.max_shared_logits_buffer_rows",
            logits_rows,
            "after",
            "SGLang reserves logits for the widest draft of the largest graph; this is the number "
            "of nodes that graphs really have.",
            "Batch sizes can be set per number of draft tokens.",
        ),
        Hook(
            "sglang.srt.model_executor.runner.base_runner.BaseRunner._widest_decode_rows",
            workspace_rows,
            "after",
            "SGLang sizes the workspace of fused all-reduces by the widest draft, whose graphs are "
            "not the ones with the most nodes.",
            "Batch sizes can be set per number of draft tokens.",
        ),
        Hook(
            "sglang.srt.arg_groups.memory_hook.reserve_for_graph_mb",
            reserve,
            "after",
            "SGLang sizes the KV cache by what it leaves to graphs, unless `mem-fraction-static` "
            "is set; drafting needs more than plain decoding.",
            "A registered algorithm can say how much memory it needs.",
        ),
    ]


def few_wide_graphs(
    result: tuple[list[int], list[int]],
    model_runner: SglModelRunner,
    captured_req_width: int = 1,
    **_: object,
) -> tuple[list[int], list[int]]:
    """Hook after `get_batch_sizes_to_capture`: returns batch sizes to capture and to compile."""
    if not drafts():
        return result
    captured, compiled = result
    most = requests_of(captured_req_width, max(captured))
    kept = [size for size in captured if size <= most] or [min(captured)]
    return kept, [size for size in compiled if size in kept]


def logits_rows(result: int, runner: SglModelRunner) -> int:
    """Hook after `ModelRunner.max_shared_logits_buffer_rows`: returns the nodes of a graph."""
    if not drafts():
        return result
    from sglang.srt.runtime_context import get_spec

    all_widths = widths(get_spec().speculative_num_draft_tokens, gpu=True)
    return most_nodes(all_widths, largest(runner))


def workspace_rows(result: int | None, owner: Any) -> int | None:
    """Hook after `BaseRunner._widest_decode_rows`: returns the nodes of a graph, or None."""
    return None if result is None else logits_rows(result, owner.model_runner)


def reserve(result: float, server_args: SglServerArgs) -> float:
    """Hook after `reserve_for_graph_mb`: returns megabytes."""
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view

    args: Any = resolving_view(server_args)
    stride = args.speculative_num_draft_tokens
    if args.speculative_algorithm != ALGORITHM or stride is None:
        return result
    model = model_config_of(server_args)
    needed = graph_bytes(
        widths(stride, gpu=True),
        args.cuda_graph_config.decode.max_bs or 1,
        model.context_len,
        model.vocab_size,
    )
    return result + needed / (1 << 20)


def drafts() -> bool:
    """Returns whether this server drafts with our algorithm."""
    from sglang.srt.runtime_context import get_spec

    return bool(get_spec().speculative_algorithm == ALGORITHM)
