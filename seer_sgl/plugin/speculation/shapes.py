"""The attention backends and CUDA graphs that verify drafts of several widths on a GPU.

SGLang creates both for one number of draft tokens. `Shapes` holds one of each per width, as
SGLang's adaptive EAGLE worker does per number of steps
(`EAGLEWorkerV2.build_adaptive_runtime_state`). A CPU needs neither.

A step without drafts is the target's own decoding, which splits long contexts and reads the KV of a
head once for all queries that share it. On a GPU it is a verification of width 1 instead with
`engines.exact`, because decoding has a kernel of its own, which rounds differently, and for models
with recurrent layers, whose states SGLang tracks for the radix cache in verifications only.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from seer_sgl.draft.policy import MOST_NODES
from seer_sgl.plugin.sglang_types import SglModelRunner

from .graphs import largest
from .pass_lists import PassLists


class _Shape(NamedTuple):
    backend: Any  # sglang AttentionBackend
    graphs: Any  # DecodeCudaGraphRunner, or None with CUDA graphs disabled


class Shapes:
    """The target's state by width.

    widths: ascending; SGLang itself has prepared the last one. exact: plain steps are
    verifications.
    """

    def __init__(self, runner: SglModelRunner, widths: Sequence[int], exact: bool) -> None:
        self._runner = runner
        self._by_width: dict[int, _Shape] = {}
        self._widest = widths[-1]
        self.plain_decodes = not on_gpu(runner) or not (exact or has_state(runner))
        if not on_gpu(runner):
            return
        for width in widths[:-1]:
            self._by_width[width] = self._make(width)
        prepared = _Shape(runner.attn_backend, runner.decode_cuda_graph_runner)
        self._by_width[self._widest] = prepared

    @property
    def most_nodes(self) -> int:
        """The maximum of nodes per verification; with graphs, those of their largest batch."""
        graphs = [shape.graphs for shape in self._by_width.values() if shape.graphs is not None]
        return max([MOST_NODES, *(int(one.max_bs * one.captured_req_width) for one in graphs)])

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
            requests = functools.partial(largest, runner)
            save_memory(backend, requests, runner.attn_backend, decodes=decodes)
            if runner.decode_cuda_graph_runner is not None:
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


def save_memory(
    backend: Any, requests: Callable[[], int], widest: Any = None, *, decodes: bool = False
) -> None:
    """Keeps a backend from reserving graph buffers that it never reads, and from building the same
    lists in each layer.

    `TritonAttnBackend.init_cuda_graph_state` sizes the partial results of split decoding by nodes
    and splits: gigabytes with deterministic inference, where splits grow with the context. A
    verification does not split. It sizes the list of KV slots by nodes, though a verification lists
    the context of a request once. All widths share the list of the backend `widest`, because one
    step runs at a time. Other classes of backends are not changed.

    requests: returns the number in the largest graph.
    """
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    # With a sliding window, the stock method would size one more buffer like the shared one.
    if not isinstance(backend, TritonAttnBackend):
        return
    shares = not backend.sliding_window_size
    if shares and backend.enable_deterministic:
        PassLists(backend)
    stock: Callable[..., None] = backend.init_cuda_graph_state

    def reserve(max_bs: int, max_num_tokens: int) -> None:
        shared = {}
        if shares and widest is not None:
            shared["kv_indices_buf"] = widest.cuda_graph_kv_indices
        elif shares:
            size = requests() * backend.max_context_len
            shared["kv_indices_buf"] = torch.zeros(size, dtype=torch.int64, device=backend.device)
        splits = backend.max_kv_splits
        backend.max_kv_splits = splits if decodes else 1
        try:
            stock(max_bs, max_num_tokens, **shared)
        finally:
            backend.max_kv_splits = splits

    backend.init_cuda_graph_state = reserve
