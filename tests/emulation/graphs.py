"""CUDA graphs without CUDA: SGLang's own `DecodeCudaGraphRunner`, whose graphs are Python calls.

The runner, its static buffers, its padding and the attention metadata of its capture are SGLang's.
A replay calls the captured function again with the metadata of the capture, and writes its output
into the storage of the captured output, as a graph does. It cannot show what a graph repeats
although it has changed since the capture: the call computes every number in Python again.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.model_executor.model_runner_components.cuda_graph_setup import GraphCapture
from sglang.srt.model_executor.runner import DecodeCudaGraphRunner, decode_cuda_graph_runner
from sglang.srt.model_executor.runner_backend.base_cuda_graph_backend import BaseCudaGraphBackend
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from typing_extensions import override

from .counts import Counts

SETUP = "sglang.srt.model_executor.model_runner_components.cuda_graph_setup"


class _Captured(NamedTuple):
    call: Callable[[], Any]
    metadata: Any  # of the attention backend
    output: Any


class PythonGraphs(BaseCudaGraphBackend):  # type: ignore[misc]
    """The graphs of one runner."""

    def __init__(self, runner: Any, counts: Counts) -> None:
        self._runner = runner
        self._counts = counts
        self._width = str(runner.captured_req_width)
        self._graphs: dict[Any, _Captured] = {}

    @override
    @contextlib.contextmanager
    def capture_session(self, stream: Any) -> Iterator[None]:
        yield

    @override
    def capture_one(
        self,
        shape_key: Any,
        forward_fn: Callable[[], Any],
        capture_inputs: Any = None,
        post_warmup_hook: Callable[[], None] | None = None,
    ) -> None:
        metadata = self._runner.attn_backend.forward_metadata
        self._graphs[shape_key] = _Captured(forward_fn, metadata, forward_fn())
        self._counts.captured[self._width] += 1

    @override
    def can_run(self, forward_batch: Any, shape_key: Any) -> bool:
        return shape_key in self._graphs

    @override
    @contextlib.contextmanager
    def replay_session(self) -> Iterator[None]:
        yield

    @override
    def replay(self, shape_key: Any, static_forward_batch: Any, **_: Any) -> Any:
        graph, backend = self._graphs[shape_key], self._runner.attn_backend
        prepared = backend.forward_metadata
        backend.forward_metadata = graph.metadata
        try:
            with forward_context(ForwardContext(attn_backend=backend)):
                write_into(graph.output, graph.call())
        finally:
            backend.forward_metadata = prepared
        self._counts.replayed[self._width] += 1
        self._counts.padded += shape_key.size > static_forward_batch.batch_size
        return graph.output

    @override
    def cleanup(self) -> None:
        self._graphs.clear()


def write_into(static: Any, computed: Any) -> None:
    """Copies the tensors of a forward pass's output to the storage of the captured output."""
    for field in dataclasses.fields(static):
        ours, theirs = getattr(static, field.name), getattr(computed, field.name)
        if isinstance(ours, torch.Tensor):
            ours.copy_(theirs)


def install(counts: Counts) -> None:
    """Makes SGLang capture and replay decode graphs on a CPU, as on a GPU."""

    def resolve(runner: Any) -> PythonGraphs:
        return PythonGraphs(runner, counts)

    def capture(*, model_runner: Any) -> Any:
        disabled = check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED)
        runner = None if disabled else DecodeCudaGraphRunner(model_runner)
        return GraphCapture(runner=runner, memory_phase="decode", memory_usage_gb=0, capture_time=0)

    HookRegistry.register(f"{SETUP}.capture_decode_graph", capture, HookType.REPLACE)
    # With device "cpu", ModelRunner asks for the modes of SGLang's compiled CPU graphs.
    ForwardMode.is_cpu_graph = ForwardMode.is_cuda_graph
    for name, stand_in in (
        ("resolve_decode_backend", resolve),
        ("graph_capture", _no_capture),
        ("get_or_create_global_graph_capture_stream", torch.cpu.current_stream),
    ):
        setattr(decode_cuda_graph_runner, name, stand_in)
    torch.cpu.is_current_stream_capturing = lambda: False  # type: ignore[attr-defined]


@contextlib.contextmanager
def _no_capture(stream: Any) -> Iterator[SimpleNamespace]:
    """Stands for `graph_capture`, which sets up the communication of ranks in a graph."""
    yield SimpleNamespace(stream=stream)
