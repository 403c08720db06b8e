"""Measures the target's time per step on the engine, by batch size and draft width."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from seer_sgl.plugin.sglang_types import SglModelRunner

from .shapes import Shapes

ROUNDS = 3
CONTEXT = 4096  # tokens that a request of the measurement attends to, if the KV cache has room


def batch_sizes(most: int) -> list[int]:
    """Returns the powers of two below `most`, then `most`."""
    sizes = [1 << i for i in range(most.bit_length()) if 1 << i < most]
    return [*sizes, most]


def step_seconds(
    runner: SglModelRunner, shapes: Shapes, widths: Sequence[int]
) -> dict[tuple[int, int], float]:
    """Returns the seconds of a forward pass by (batch, width): the minimum of some rounds.

    runner: ready to serve. Every rank of an engine must call this function. The rounds of one pass
    are apart, so that an engine that loads beside this one does not disturb all of them.
    """
    most = max(1, min(runner.max_running_requests, shapes.most_nodes // widths[-1]))
    passes = [(batch, width) for batch in batch_sizes(most) for width in widths]
    seconds = dict.fromkeys(passes, float("inf"))
    for _ in range(ROUNDS):
        for one in passes:
            seconds[one] = min(seconds[one], _seconds(runner, shapes, *one))
    return seconds


def context_length(runner: SglModelRunner, batch: int) -> int:
    """Returns the tokens that each of `batch` requests attends to in the measurement."""
    room = min(runner.max_total_num_tokens // batch, runner.model_config.context_len // 2)
    return max(1, min(CONTEXT, room))


def _seconds(runner: SglModelRunner, shapes: Shapes, batch: int, width: int) -> float:
    device = torch.get_device_module(runner.device)
    verifies = width > 1 or not shapes.plain_decodes
    with _contexts(runner, batch) as length:
        forward_batch = _dummy(runner, batch, width, length, verifies)
        device.synchronize()
        began = time.perf_counter()
        with shapes.of(width):
            runner.forward(forward_batch)
        device.synchronize()
        return time.perf_counter() - began


@contextlib.contextmanager
def _contexts(runner: SglModelRunner, batch: int) -> Iterator[int]:
    """Lends `batch` requests a context each; yields its length.

    Nothing is running yet. The slots differ as far as there are enough: one slot for all would stay
    in the GPU's cache, where reading KV costs nothing.
    """
    table = runner.req_to_token_pool.req_to_token
    slots = runner.max_total_num_tokens
    length = context_length(runner, batch)
    rows = table[1 : batch + 1, :length]
    taken = torch.arange(batch * length, dtype=table.dtype, device=table.device) % slots
    rows.copy_(taken.view(batch, length))
    try:
        yield length
    finally:
        rows.zero_()


def _dummy(runner: SglModelRunner, batch: int, width: int, length: int, verifies: bool) -> Any:
    """Returns a batch of the requests 1 to `batch` that decodes or verifies after `length` tokens.

    Its own KV goes to SGLang's padding slot 0.
    """
    from sglang.srt.model_executor.forward_batch_info import (
        CaptureHiddenMode,
        ForwardBatch,
        ForwardMode,
    )
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    from .mask import attention_mask

    device, tokens = runner.device, batch * width
    seq_lens_cpu = torch.full((batch,), length, dtype=torch.int64)
    seq_lens = seq_lens_cpu.to(device)
    positions = torch.full((tokens,), length, dtype=torch.int64, device=device)
    zeros = torch.zeros(tokens, dtype=torch.int64, device=device)
    verify = None
    if verifies:
        chain = torch.ones((width, width), dtype=torch.bool, device=device).tril()
        nodes = torch.arange(tokens, device=device).view(batch, width)
        verify = NgramVerifyInput(
            draft_token=zeros,
            custom_mask=attention_mask(chain.expand(batch, -1, -1), seq_lens, seq_lens_cpu),
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
