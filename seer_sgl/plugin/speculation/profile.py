"""Measures the target's time per step on the engine, by batch size and draft width."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

import torch

from seer_sgl.plugin.sglang_types import SglModelRunner

from .dummies import Dummies
from .shapes import Shapes
from .verify import verify

ROUNDS = 3
CONTEXT = 4096  # tokens that a request of the measurement attends to, if the KV cache has room


def batch_sizes(most: int) -> list[int]:
    """Returns the powers of two below `most`, then `most`."""
    sizes = [1 << i for i in range(most.bit_length()) if 1 << i < most]
    return [*sizes, most]


@torch.no_grad()  # as SGLang's loop; else static buffers would collect a graph of all draws
def step_seconds(
    runner: SglModelRunner, shapes: Shapes, widths: Sequence[int]
) -> dict[tuple[int, int], float]:
    """Returns the seconds of a forward pass and of the draws at its nodes, by (batch, width): the
    minimum of some rounds.

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


def described(seconds: Mapping[tuple[int, int], float]) -> str:
    """Returns the times of the smallest and of the largest batch in words, for the log."""
    batches, widths = (sorted(set(sizes)) for sizes in zip(*seconds, strict=True))
    one, most = (
        [round(1e3 * seconds[batch, width], 2) for width in widths]
        for batch in (batches[0], batches[-1])
    )
    nodes = f"steps of {widths} nodes per request"
    return f"{nodes} take {one} ms for {batches[0]} request, {most} ms for {batches[-1]}"


def context_length(runner: SglModelRunner, batch: int) -> int:
    """Returns the tokens that each of `batch` requests attends to in the measurement."""
    room = min(runner.max_total_num_tokens // batch, runner.model_config.context_len // 2)
    return max(1, min(CONTEXT, room))


def _seconds(runner: SglModelRunner, shapes: Shapes, batch: int, width: int) -> float:
    verifies = width > 1 or not shapes.plain_decodes
    with _contexts(runner, batch) as length:
        dummies = Dummies(runner, batch, width, length)
        forward_batch = dummies.forward_batch(verifies)
        sampled, nodes = dummies.sampled(), dummies.nodes()
        with shapes.of(width), _Clock(runner) as forward:
            output = runner.forward(forward_batch).logits_output
        # Slots that nobody wrote may hold NaN, which crashes a sampler.
        output.next_token_logits.zero_()
        with _Clock(runner) as draws:
            verify(runner, sampled, output, nodes, forward_batch.positions, None)
    return forward.seconds + draws.seconds


class _Clock:
    """Measures the seconds of a block on the device."""

    def __init__(self, runner: SglModelRunner) -> None:
        self._wait = torch.get_device_module(runner.device).synchronize
        self.seconds = 0.0

    def __enter__(self) -> "_Clock":
        self._wait()
        self.seconds = -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._wait()
        self.seconds += time.perf_counter()


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
