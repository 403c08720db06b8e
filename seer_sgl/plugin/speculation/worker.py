"""SGLang's speculative worker: plain steps, verified steps, and their results for the scheduler.

It replaces `NGRAMWorker` (sglang.srt.speculative.ngram_worker) and follows its design. Every row
reserves KV slots for the widest draft. `batch.spec_info` carries the tokens of a step to the next
one, also with overlapped scheduling.

On a GPU the host waits for the device where it drafts: at the start of a step, for the tokens of
the step before. Everything else is queued, so that SGLang's scheduler can work meanwhile. A step
that does not draft needs nothing from the host, and its lengths are known before it runs, so plain
steps overlap as in stock SGLang.
"""

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_device, get_schedule, get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.spec_utils import (
    commit_mamba_states_after_verify,
    prepare_mamba_track_for_verify,
    record_stream_for_v2_verify,
)
from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer
from typing_extensions import override

from seer_sgl.draft.tree import is_chains, lay_out
from seer_sgl.plugin.drafting import DraftStatus
from seer_sgl.plugin.sglang_types import SglResult, SglScheduleBatch, SglServerArgs, SglTargetWorker
from seer_sgl.plugin.stop_conditions import note_open_grammars

from . import abilities, ranks, start
from .graphs import largest, widths
from .mask import attention_mask
from .minimum import minimum_of, penalize
from .moved import move_accepted
from .node_sampler import speculates
from .planner import PLAIN, LastStep, Planner, StepPlan
from .shapes import Shapes, on_gpu, save_memory
from .verify import flat, verify
from .walk import outcome_of, root_alone, upload

logger = logging.getLogger(__name__)
Publish = Callable[[torch.Tensor], object]  # receives the lengths after a step, int64 [n]
P = ParamSpec("P")
T = TypeVar("T")


class GroupedWorker(BaseSpecWorker):  # type: ignore[misc]
    """The worker of one rank. Only the first rank drafts. status: reports its drafting.

    Replaces sglang.srt.speculative.ngram_worker.NGRAMWorker.
    """

    draft_worker = None  # no draft model

    def __init__(
        self,
        status: DraftStatus,
        server_args: SglServerArgs,
        gpu_id: int,
        nccl_port: int,
        target_worker: SglTargetWorker,
        **_: object,  # SGLang 0.5.20 also hands the ranks over
    ) -> None:
        super().__init__()
        self._status = status
        self._target_worker = target_worker
        self.model_runner = target_worker.model_runner
        self.device = get_device().device
        self.enable_overlap = not get_schedule().disable_overlap_schedule
        self.speculative_num_draft_tokens = self._stride = get_spec().speculative_num_draft_tokens
        self.speculative_num_steps = get_spec().speculative_num_steps
        self._planner: Planner | None = None
        self._shapes: Shapes

    @override
    def alloc_memory_pool(self, **_: object) -> None:
        # Drafts have no KV of their own, so the pools are the target's.
        pools = self._target_worker.get_memory_pool()
        self.req_to_token_pool, self.token_to_kv_pool_allocator = pools

    @override
    def init_attention_backends(self) -> None:
        # SGLang creates the target's graphs next. They verify.
        abilities.refuse_ngrams(self.model_runner)
        if on_gpu(self.model_runner):
            runner = self.model_runner
            save_memory(runner.attn_backend, functools.partial(largest, runner))

    @override
    def init_cuda_graphs(self) -> None:
        # The target is complete: its steps can be measured.
        runner, stride = self.model_runner, self._stride
        all_widths = widths(stride, on_gpu(runner))
        logger.info("seer-sgl: preparing steps of %s nodes per request", all_widths)
        self._shapes = Shapes(runner, all_widths, start.exact(runner, stride))
        self._planner = start.planner(
            runner, self._shapes, all_widths, self._status, overlaps=self.enable_overlap
        )

    @override
    def clear_cache_pool(self) -> None:
        pass  # the indexes hold tokens, not KV

    @override
    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        if self._planner is not None:
            self._aided(None, self._planner.finished, rid)

    def forward_batch_generation(
        self,
        batch: SglScheduleBatch,
        on_publish: Publish | None = None,
        pp_proxy_tensors: None = None,  # pipeline stages are refused (algorithm.py)
    ) -> GenerationBatchResult:
        """Runs one step of a batch of any kind.

        on_publish: gives the lengths after the step to the next one, which waits for what is queued
        before.
        """
        publish: Publish = on_publish or (lambda _: None)  # None: steps do not overlap
        stream = torch.get_device_module(self.device).current_stream()
        record_stream_for_v2_verify(batch, None, stream)
        if not batch.forward_mode.is_decode():
            return self._prefill(batch, publish)
        note_open_grammars(batch)
        plan = ranks.agree(self._plan(batch), len(batch.reqs), self._stride)
        if plan.width == 1 and self._shapes.plain_decodes:
            return self._decode(batch, publish)
        return self._verify(batch, plan, publish)

    def _plan(self, batch: SglScheduleBatch) -> StepPlan:
        """Returns this rank's plan of a decoding step."""
        if self._planner is None:
            return PLAIN
        carried = batch.spec_info
        assert carried is not None

        def last_step() -> LastStep:
            lens = carried.accept_lens.to("cpu", non_blocking=True)
            runs = carried.accept_tokens.cpu().numpy().reshape(-1, self._stride)
            return runs, lens.numpy()

        # SGLang gives the grammars to `sampling_info` later, with the forward pass.
        plain = batch.has_grammar or not speculates(batch.sampling_info)
        totals = batch.seq_lens_cpu.numpy() + 1
        return self._aided(PLAIN, self._planner.plan, batch.reqs, totals, last_step, plain)

    def _newest(self, batch: SglScheduleBatch) -> torch.Tensor:
        """Returns the newest token per request, int64 [n], on the device."""
        carried = batch.spec_info
        assert carried is not None
        runs = carried.accept_tokens.view(-1, self._stride).to(torch.int64)
        return runs.gather(1, carried.accept_lens[:, None].long() - 1).view(-1)

    def _aided(self, otherwise: T, draft: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of `draft`; if it fails, returns `otherwise` and ends drafting."""
        try:
            return draft(*args, **kwargs)
        except Exception:
            logger.exception("seer-sgl: drafting failed; this engine decodes plainly from now on")
            self._planner = None
            return otherwise

    def _prefill(self, batch: SglScheduleBatch, publish: Publish) -> GenerationBatchResult:
        """Runs a batch that does not decode, unchanged on the target."""
        if self._planner is not None:
            self._aided(None, self._planner.interrupted)
        minimum = minimum_of(batch, 0)
        penalize(batch.sampling_info, minimum, batch.seq_lens)
        new_seq_lens = batch.seq_lens
        publish(new_seq_lens)
        result = self._target_worker.forward_batch_generation(batch)
        return self._one_each(result, new_seq_lens, False)

    def _decode(self, batch: SglScheduleBatch, publish: Publish) -> GenerationBatchResult:
        """Runs a step without drafts: the target's own decoding, as without speculation."""
        new_seq_lens = batch.seq_lens + 1
        publish(new_seq_lens)
        minimum = minimum_of(batch, 1)
        penalize(batch.sampling_info, minimum, new_seq_lens)
        batch.input_ids = self._newest(batch)
        slots = batch.req_to_token_pool.req_to_token[batch.req_pool_indices, batch.seq_lens]
        batch.out_cache_loc = slots.to(torch.int64)
        batch.seq_lens = new_seq_lens
        batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        batch.seq_lens_sum = None
        batch.orig_seq_lens = batch.orig_seq_lens + 1
        batch.spec_info = None
        with self._shapes.of(1):
            result = self._target_worker.forward_batch_generation(batch)
        if batch.return_logprob:
            output = result.logits_output
            output.next_token_logprobs = output.next_token_logprobs.view(-1, 1)
        return self._one_each(result, new_seq_lens, True)

    def _verify(
        self, batch: SglScheduleBatch, plan: StepPlan, publish: Publish
    ) -> GenerationBatchResult:
        """Runs a step with drafts: the target at every node, then the walk. A plan without drafts
        is the root alone, in the kernel of drafts."""
        count, width = len(batch.reqs), plan.width
        newest, moves = self._newest(batch), False
        if plan.drafts is None:
            publish(batch.seq_lens + 1)
            nodes = root_alone(newest)
        else:
            layout = lay_out(plan.drafts, width)
            nodes = upload(layout, newest)
            moves = not is_chains(layout)  # on a chain, accepted KV is where it belongs
        positions = (nodes.depths + batch.seq_lens[:, None]).view(-1)
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.input_ids = nodes.tokens.view(-1)
        batch.out_cache_loc = assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=batch.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            end_offset=batch.seq_lens + width,
            batch_size=count,
            draft_token_num=width,
            device=self.device,
        )
        minimum = minimum_of(batch, 1)
        prepare_mamba_track_for_verify(batch)
        batch.spec_info = NgramVerifyInput(
            draft_token=batch.input_ids,
            custom_mask=attention_mask(nodes.mask, batch.seq_lens, batch.seq_lens_cpu),
            positions=positions,
            retrieve_index=torch.arange(count * width, device=self.device).view(count, width),
            retrieve_next_token=nodes.first_child,
            retrieve_next_sibling=nodes.next_sibling,
            draft_token_num=width,
        )
        with self._shapes.of(width):
            result = self._target_worker.forward_batch_generation(batch, is_verify=True)
            output = result.logits_output
            verified = verify(self.model_runner, batch, output, nodes, positions, minimum)
            walked, lens = verified.walked, verified.walked.lens
            # The states are at the places that the backend of this width has noted.
            commit_mamba_states_after_verify(
                self._target_worker, batch, lens, flat(walked).to(torch.int32), width
            )
        if moves:
            cache = self.token_to_kv_pool_allocator.get_kvcache()
            slots = batch.out_cache_loc.view(count, width)
            move_accepted(cache, get_global_experts_capturer(), result, slots, walked)
        if self._planner is not None and plan.drafts is not None:
            self._aided(None, self._planner.verifying, plan, outcome_of(walked))
        tokens = torch.zeros((count, self._stride), dtype=torch.int32, device=self.device)
        tokens[:, :width] = verified.tokens
        new_seq_lens = batch.seq_lens + lens
        if plan.drafts is not None:
            publish(new_seq_lens)
        return self._result(result, tokens, lens, new_seq_lens, width, True)

    def _one_each(
        self, result: SglResult, new_seq_lens: torch.Tensor, decoded: bool
    ) -> GenerationBatchResult:
        """Returns the result of a step with one token per request."""
        count = len(new_seq_lens)
        tokens = torch.zeros((count, self._stride), dtype=torch.int32, device=self.device)
        tokens[:, 0] = result.next_token_ids
        lens = torch.ones(count, dtype=torch.int32, device=self.device)
        return self._result(result, tokens, lens, new_seq_lens, 1, decoded)

    def _result(  # noqa: PLR0917
        self,
        result: SglResult,
        tokens: torch.Tensor,
        lens: torch.Tensor,
        new_seq_lens: torch.Tensor,
        width: int,
        decoded: bool,
    ) -> GenerationBatchResult:
        """Returns a step's result. tokens: int32 [n, stride], `lens` of them per row."""
        carried = NgramVerifyInput(
            draft_token_num=self._stride,
            new_seq_lens=new_seq_lens,
            accept_tokens=tokens.view(-1),
            accept_lens=lens,
        )
        return GenerationBatchResult(
            logits_output=result.logits_output,
            next_token_ids=tokens.view(-1) if decoded else result.next_token_ids,
            can_run_cuda_graph=result.can_run_cuda_graph,
            accept_lens=lens,
            new_seq_lens=new_seq_lens,
            next_draft_input=carried,
            speculative_num_draft_tokens=width,
            speculative_output_stride=self._stride,
            routed_experts_output=result.routed_experts_output,
        )
