"""The attention backends and CUDA graphs that verify drafts of several widths on a GPU.

SGLang creates both for one number of draft tokens. `Shapes` holds one of each per width, as
SGLang's adaptive EAGLE worker does per number of steps
(`EAGLEWorkerV2.build_adaptive_runtime_state`). A CPU needs neither.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from seer_sgl.plugin.sglang_types import SglModelRunner


class _Shape(NamedTuple):
    backend: Any  # sglang AttentionBackend
    graphs: Any  # DecodeCudaGraphRunner, or None with CUDA graphs disabled


class Shapes:
    """The target's state by width. `stride`: the width that SGLang itself has prepared."""

    def __init__(self, runner: SglModelRunner, widths: Sequence[int], stride: int) -> None:
        self._runner = runner
        self._by_width: dict[int, _Shape] = {}
        self.plain_decodes = torch.device(runner.device).type == "cpu"
        if self.plain_decodes:
            return
        self._by_width[stride] = _Shape(runner.attn_backend, runner.decode_cuda_graph_runner)
        for width in widths:
            if width not in self._by_width:
                self._by_width[width] = self._make(width, stride)

    @contextlib.contextmanager
    def of(self, width: int) -> Iterator[None]:
        """Sets the target up to verify `width` nodes per request in this block."""
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

    def _make(self, width: int, stride: int) -> _Shape:
        from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
        from sglang.srt.runtime_context import get_context

        runner = self._runner
        override = get_context().override
        override("seer_sgl.shapes", speculative_num_draft_tokens=width)
        workspace = runner.init_new_workspace
        try:
            backend = runner._get_attention_backend(init_new_workspace=True)
            graphs = None
            if runner.decode_cuda_graph_runner is not None:
                graphs = DecodeCudaGraphRunner(
                    runner, attn_backend=backend, speculative_num_draft_tokens=width
                )
        finally:
            runner.init_new_workspace = workspace
            override("seer_sgl.shapes", speculative_num_draft_tokens=stride)
        return _Shape(backend, graphs)
