"""`--speculative-algorithm SEER_GROUP`, registered with SGLang's `SpeculativeAlgorithm`.

SGLang treats it as n-gram drafting (`is_ngram`): draft trees without KV of their own, verified by
the target. The drafter and the verification are different (worker.py).
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from seer_sgl.link.contract import ALGORITHM
from seer_sgl.plugin.drafting import DraftStatus
from seer_sgl.plugin.hook import UPDATER, Hook
from seer_sgl.plugin.sglang_types import SglServerArgs, SglWeightUpdater

from .graphs import drafts

# The first captures the copy of one step's draft mask, which later steps repeat. The second sizes
# the KV cache before the graphs of all draft widths are captured.
REFUSED_VARIABLES = (
    "SGLANG_ENABLE_METADATA_GLUE_GRAPH",
    "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
)


def register(status: DraftStatus) -> None:
    """Registers the algorithm, once per process of a server. status: reports its workers."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class GroupedSpeculation(CustomSpecAlgo):  # type: ignore[misc]
        """The properties of the algorithm that SGLang reads."""

        @override
        def is_ngram(self) -> bool:
            # For the relay of accepted tokens between overlapped steps, and the graph capture.
            return True

        @override
        def has_draft_kv(self) -> bool:
            return False  # there is no draft model

        def need_topk(self) -> bool:
            """Returns False: no state of a draft model is carried from step to step."""
            return False

        def carries_draft_hidden_states(self) -> bool:
            """Returns False: prefill servers send no state of a draft model to decode servers."""
            return False

        def create_future_map(self, device: Any, pool: Any, *args: Any, **options: Any) -> Any:
            """Returns the same map as SGLang's enum. The scheduler calls this method, but
            `CustomSpecAlgo` lacks it."""
            from sglang.srt.managers.overlap_utils import FutureMap

            return FutureMap(device, self, pool, *args, **options)

        @override
        def handle_server_args(self, server_args: SglServerArgs) -> None:
            from sglang.srt.environ import envs

            for flag in refused_flags(server_args):
                raise ValueError(f"--{flag}: not with --speculative-algorithm {ALGORITHM}")
            for variable in REFUSED_VARIABLES:
                if getattr(envs, variable).get():
                    raise ValueError(f"{variable}: not with --speculative-algorithm {ALGORITHM}")
            # One kind of step for all tokens (engine/launch/exact.py) means little without it.
            root_only = server_args.speculative_num_draft_tokens == 1
            if root_only and not server_args.enable_deterministic_inference:
                raise ValueError(
                    "--speculative-num-draft-tokens 1: only with --enable-deterministic-inference"
                )
            if server_args.device == "cpu":
                server_args.disable_overlap_schedule = True
            server_args.enable_mixed_chunk = False
            # SGLang's kernel that moves KV rows does not order its reads before its writes, and the
            # rows of an accepted path overlap. The native move reads all rows first.
            envs.SGLANG_NATIVE_MOVE_KV_CACHE.set(True)
            # One path of KV per request, as wide as the widest draft.
            server_args.speculative_eagle_topk = 1
            server_args.speculative_num_steps = 1

    def worker(_: SglServerArgs) -> Callable[..., Any]:
        from .worker import GroupedWorker

        return functools.partial(GroupedWorker, status)

    SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, spec_class=GroupedSpeculation)(
        worker
    )


def refused_flags(server_args: SglServerArgs) -> Iterator[str]:
    """Yields the flags of a server that our steps do not support, as on the command line.

    The first ones are those of SGLang's own n-gram drafting. Two-batch overlap splits a step by
    fields that only EAGLE's drafts have. PD multiplexing prefills without the worker, so the next
    step would lack its tokens.
    """
    given = {
        "enable-dp-attention": server_args.enable_dp_attention,
        "pp-size": server_args.pp_size > 1,
        "disaggregation-mode": server_args.disaggregation_mode != "null",
        "enable-return-hidden-states": server_args.enable_return_hidden_states,
        "enable-two-batch-overlap": getattr(server_args, "enable_two_batch_overlap", False),
        "enable-pdmux": getattr(server_args, "enable_pdmux", False),
    }
    yield from (flag for flag, value in given.items() if value)


def hooks() -> list[Hook]:
    return [
        Hook(
            "sglang.srt.mem_cache.kv_cache_configurator.get_req_to_token_extra_context_len",
            room_for_drafts,
            "after",
            "SGLang ends a request's row of KV slots at the context length; the slots reserved for "
            "drafts at the very end of the context have to fit too.",
            "The room for drafts follows from the algorithm that is registered.",
        ),
        Hook(
            f"{UPDATER}.update_weights_from_disk",
            refuse_recapture,
            "around",
            "SGLang captures the graphs of one draft width again if a trainer asks for it; the "
            "graphs of other widths would keep memory that the old weights had.",
            "SGLang captures the graphs of all widths of an algorithm again.",
        ),
        Hook(
            "sglang.srt.state_capturer.routed_experts.RoutedExpertsCapturer.create",
            room_for_rows,
            "before",
            "SGLang has room for the routed experts of one token per running request; a "
            "verification has several.",
            "SGLang counts the tokens of a verification.",
        ),
    ]


def room_for_drafts(result: int) -> int:
    """Hook after `get_req_to_token_extra_context_len`: returns extra KV slots per request.

    They hold the drafts at the very end of the context. With a page size of 1, stock SGLang's row
    is too short for them.
    """
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    if not drafts():
        return result
    return max(result, int(get_alloc_reserve_per_decode()))


def refuse_recapture(stock: Callable[..., Any], updater: SglWeightUpdater, recv_req: Any) -> Any:
    """Hook around `SchedulerWeightUpdaterManager.update_weights_from_disk`."""
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqOutput

    if not recv_req.recapture_cuda_graph or not drafts():
        return stock(updater, recv_req)
    return UpdateWeightFromDiskReqOutput(
        success=False,
        message=f"recapture_cuda_graph: not with --speculative-algorithm {ALGORITHM}",
        num_paused_requests=0,
    )


def room_for_rows(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Hook before `RoutedExpertsCapturer.create`: asks for a row per node of every request."""
    from sglang.srt.runtime_context import get_spec

    if drafts():
        kwargs["max_running_requests"] *= get_spec().speculative_num_draft_tokens
    return args, kwargs
