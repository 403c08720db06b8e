"""The inputs of a step of requests that do not exist, to measure its time."""

from typing import Any, NamedTuple, cast

import torch

from seer_sgl.plugin.sglang_types import SglModelRunner, SglSamplingInfo, SglScheduleBatch

from .walk import Nodes


class _Sampled(NamedTuple):
    """The fields of ScheduleBatch that the draws of a verification need."""

    sampling_info: SglSamplingInfo
    return_logprob: bool
    top_logprobs_nums: list[int]
    token_ids_logprobs: list[list[int] | None]


class Dummies:
    """`batch` requests with `width` nodes each, in a chain after `length` tokens."""

    def __init__(self, runner: SglModelRunner, batch: int, width: int, length: int) -> None:
        self._runner = runner
        self._batch = batch
        self._width = width
        self._length = length

    def forward_batch(self, verifies: bool) -> Any:
        """Returns SGLang's ForwardBatch of the requests 1 to `batch` that decodes or verifies.

        Its own KV goes to SGLang's padding slot 0.
        """
        from sglang.srt.model_executor.forward_batch_info import (
            CaptureHiddenMode,
            ForwardBatch,
            ForwardMode,
        )
        from sglang.srt.speculative.ngram_info import NgramVerifyInput

        from .mask import attention_mask

        runner, batch, width, length = self._runner, self._batch, self._width, self._length
        device, tokens = runner.device, batch * width
        seq_lens_cpu = torch.full((batch,), length, dtype=torch.int64)
        seq_lens = seq_lens_cpu.to(device)
        positions = torch.full((tokens,), length, dtype=torch.int64, device=device)
        zeros = torch.zeros(tokens, dtype=torch.int64, device=device)
        verify = None
        if verifies:
            nodes = torch.arange(tokens, device=device).view(batch, width)
            verify = NgramVerifyInput(
                draft_token=zeros,
                custom_mask=attention_mask(self.nodes().mask, seq_lens, seq_lens_cpu),
                positions=positions,
                retrieve_index=nodes,
                retrieve_next_token=nodes,
                retrieve_next_sibling=nodes,
                draft_token_num=width,
            )
            verify.capture_hidden_mode = CaptureHiddenMode.NULL
        return ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY if verify else ForwardMode.DECODE,
            batch_size=batch,
            input_ids=zeros,
            req_pool_indices=torch.arange(1, batch + 1, device=device),
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens_cpu,
            orig_seq_lens=seq_lens,
            seq_lens_sum=batch * length,
            out_cache_loc=zeros,
            positions=positions,
            mrope_positions=positions.expand(3, -1) if runner.model_config.model_is_mrope else None,
            spec_algorithm=runner.spec_algorithm,
            spec_info=verify,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )

    def nodes(self) -> Nodes:
        """Returns the chains for the walk."""
        device, shape = self._runner.device, (self._batch, self._width)
        depths = torch.arange(self._width, device=device).expand(shape)
        tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        chain = torch.ones((self._width, self._width), dtype=torch.bool, device=device).tril()
        none = torch.full_like(tokens, -1)
        return Nodes(tokens, depths, depths - 1, none, none, chain.expand(self._batch, -1, -1))

    def sampled(self) -> SglScheduleBatch:
        """Returns the batch for the draws: temperature 1, with log probabilities, and with seeds if
        the engine uses them."""
        from sglang.srt.runtime_context import get_exec
        from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
        from sglang.srt.sampling.sampling_params import TOP_K_ALL

        device, count = self._runner.device, self._batch
        ones = torch.ones(count, device=device)
        seeded = get_exec().deterministic.enable_deterministic_inference
        info = SamplingBatchInfo(
            temperatures=ones[:, None],
            top_ps=ones,
            top_ks=torch.full((count,), TOP_K_ALL, dtype=torch.int32, device=device),
            min_ps=torch.zeros(count, device=device),
            is_all_greedy=False,
            is_any_greedy=False,
            need_top_p_sampling=False,
            need_top_k_sampling=False,
            need_min_p_sampling=False,
            vocab_size=self._runner.model_config.vocab_size,
            sampling_seed=torch.arange(count, device=device) if seeded else None,
            device=device,
        )
        return cast("SglScheduleBatch", _Sampled(info, True, [0] * count, [None] * count))
