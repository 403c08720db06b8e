"""The attention backends and CUDA graphs that verify drafts of several widths on a GPU.

SGLang creates both for one number of draft tokens. `Shapes` holds one of each per width, as
SGLang's adaptive EAGLE worker does per number of steps
(`EAGLEWorkerV2.build_adaptive_runtime_state`). A CPU needs neither.

A step without drafts is the target's own decoding, which splits long contexts and reads the KV of a
head once for all queries that share it. On a GPU it is a verification of width 1 instead with
deterministic inference, because decoding has a kernel of its own, which rounds differently, and for
models with recurrent layers, whose states SGLang tracks for the radix cache in verifications only.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from seer_sgl.draft.policy import MOST_NODES
from seer_sgl.plugin.sglang_types import SglModelRunner


class _Shape(NamedTuple):
    backend: Any  # sglang AttentionBackend
    graphs: Any  # DecodeCudaGraphRunner, or None with CUDA graphs disabled


class Shapes:
    """The target's state by width. `stride`: the width that SGLang itself has prepared."""

    def __init__(self, runner: SglModelRunner, widths: Sequence[int], stride: int) -> None:
        from sglang.srt.runtime_context import get_exec

        self._runner = runner
        self._by_width: dict[int, _Shape] = {}
        self._widest = stride
        deterministic = get_exec().deterministic.enable_deterministic_inference
        self.plain_decodes = not on_gpu(runner) or not (deterministic or has_state(runner))
        if not on_gpu(runner):
            return
        self._by_width[stride] = _Shape(runner.attn_backend, runner.decode_cuda_graph_runner)
        for width in widths:
            if width not in self._by_width:
                self._by_width[width] = self._make(width)

    @property
    def most_nodes(self) -> int:
        """The maximum of nodes per verification; with graphs, those of their largest batch."""
        graphs = self._runner.decode_cuda_graph_runner
        return MOST_NODES if graphs is None else max(MOST_NODES, graphs.max_bs * self._widest)

    @contextlib.contextmanager
    def of(self, width: int) -> Iterator[None]:
        """Sets the target up to run `width` nodes per request in this block."""
        if not self._by_width:
            yield
            return
        runner = self._runner
        before = runner.attn_backend, runner.decode_cuda_graph_runner
        runner.attn_backend, runner.decode_cuda_graph_runner = self._by_width[width]
        try:
            yield
        finally:
            runner.attn_backend, runner.decode_cuda_graph_runner = before

    def _make(self, width: int) -> _Shape:
        from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
        from sglang.srt.runtime_context import get_context
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        runner = self._runner
        override = get_context().override
        override("seer_sgl.shapes", speculative_num_draft_tokens=width)
        algorithm = runner.spec_algorithm
        decodes = width == 1 and self.plain_decodes
        if decodes:
            runner.spec_algorithm = SpeculativeAlgorithm.NONE
        try:
            # flashinfer's workspace, up to 2 GiB, is shared: one step runs at a time.
            backend = runner._get_attention_backend(init_new_workspace=False)
            graphs = None
            if runner.decode_cuda_graph_runner is not None:
                if not decodes:
                    save_memory(backend, runner.attn_backend)
                graphs = DecodeCudaGraphRunner(
                    runner, attn_backend=backend, speculative_num_draft_tokens=width
                )
        finally:
            runner.spec_algorithm = algorithm
            override("seer_sgl.shapes", speculative_num_draft_tokens=self._widest)
        return _Shape(backend, graphs)


def on_gpu(runner: SglModelRunner) -> bool:
    """Returns whether the target has a backend and graphs per width."""
    return torch.device(runner.device).type != "cpu"


def has_state(runner: SglModelRunner) -> bool:
    """Returns whether the model has recurrent layers (linear attention or Mamba)."""
    from sglang.srt.configs.hybrid_arch import mambaish_config

    return mambaish_config(runner.model_config) is not None


def has_window(runner: SglModelRunner) -> bool:
    """Returns whether the model has layers with a sliding window."""
    return (runner.sliding_window_size or 0) > 0


def save_memory(backend: Any, widest: Any = None) -> None:
    """Keeps a verifying backend from reserving graph buffers that it never reads.

    `TritonAttnBackend.init_cuda_graph_state` sizes the partial results of split decoding by nodes
    and splits: gigabytes with deterministic inference, where splits grow with the context. A
    verification does not split. Its KV indices can be those of the backend `widest`, because one
    step runs at a time. Other classes of backends are left as they are.
    """
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    if not isinstance(backend, TritonAttnBackend):
        return
    stock: Callable[..., None] = backend.init_cuda_graph_state
    # With a sliding window, the stock method would size one more buffer like the shared one.
    shared = {}
    if widest is not None and not backend.sliding_window_size:
        shared["kv_indices_buf"] = widest.cuda_graph_kv_indices

    def reserve(max_bs: int, max_num_tokens: int) -> None:
        splits, backend.max_kv_splits = backend.max_kv_splits, 1
        try:
            stock(max_bs, max_num_tokens, **shared)
        finally:
            backend.max_kv_splits = splits

    backend.init_cuda_graph_state = reserve
