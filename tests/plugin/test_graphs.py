"""Few widths, few graphs of wide drafts, and the memory of both."""

from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.link.contract import ALGORITHM
from seer_sgl.plugin.speculation import graphs
from seer_sgl.plugin.speculation.algorithm import refuse_recapture, refused_flags
from seer_sgl.plugin.speculation.graphs import few_wide_graphs, graph_bytes, most_nodes, widths

from .stand_ins import replace_module


@pytest.mark.parametrize(
    ("stride", "cpu", "gpu"),
    [
        (1, [1], [1]),
        (2, [1, 2], [1, 2]),
        (3, [1, 3], [1, 3]),
        (5, [1, 3, 5], [1, 5]),
        (6, [1, 3, 5, 6], [1, 5, 6]),
        (17, [1, 3, 5, 9, 17], [1, 5, 17]),
        (65, [1, 3, 5, 9, 17, 33, 65], [1, 5, 17, 65]),
    ],
)
def test_a_gpu_has_half_as_many_widths(stride: int, cpu: list[int], gpu: list[int]) -> None:
    assert widths(stride, gpu=False) == cpu
    assert widths(stride, gpu=True) == gpu


@pytest.mark.parametrize(
    ("width", "kept"), [(1, [1, 64, 128, 256]), (5, [1, 64, 128, 256]), (17, [1, 64])]
)
def test_wide_drafts_of_many_requests_have_no_graph(
    width: int, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner: Any = SimpleNamespace()
    monkeypatch.setattr(graphs, "drafts", lambda: True)
    assert few_wide_graphs(([1, 64, 128, 256], [64, 128]), runner, width) == (
        kept,
        [size for size in (64, 128) if size in kept],
    )
    assert few_wide_graphs(([100], []), runner, width) == ([100], []), "one graph at least"
    monkeypatch.setattr(graphs, "drafts", lambda: False)
    assert few_wide_graphs(([1, 256], []), runner, width) == ([1, 256], [])


def test_memory_beside_the_kv_cache_grows_little_with_the_context() -> None:
    given = widths(17, gpu=True)
    assert most_nodes(given, 256) == 5 * 256
    short = graph_bytes(given, 256, 32_768, 152_064)
    assert short == pytest.approx(3.3e9, rel=0.1)
    # Slots by nodes and all graphs of all widths took 17.5 GB.
    assert graph_bytes(given, 256, 131_072, 152_064) < 5e9


REFUSED = f"recapture_cuda_graph: not with --speculative-algorithm {ALGORITHM}"


@pytest.mark.parametrize(
    ("algorithm", "again", "message"),
    [(ALGORITHM, True, REFUSED), (ALGORITHM, False, None), (None, True, None)],
)
def test_a_drafting_engine_does_not_capture_graphs_again(
    algorithm: str | None, again: bool, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SimpleNamespace(speculative_algorithm=algorithm)
    replace_module(monkeypatch, "sglang.srt.runtime_context", get_spec=lambda: spec)
    io_struct = "sglang.srt.managers.io_struct"
    replace_module(monkeypatch, io_struct, UpdateWeightFromDiskReqOutput=SimpleNamespace)
    updater: Any = SimpleNamespace()
    request = SimpleNamespace(recapture_cuda_graph=again)
    answer = refuse_recapture(lambda *_: SimpleNamespace(message=None), updater, request)
    assert answer.message == message


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({}, []),
        ({"enable_dp_attention": True}, ["enable-dp-attention"]),
        ({"pp_size": 2}, ["pp-size"]),
        ({"disaggregation_mode": "decode"}, ["disaggregation-mode"]),
        ({"enable_return_hidden_states": True}, ["enable-return-hidden-states"]),
        ({"enable_two_batch_overlap": True}, ["enable-two-batch-overlap"]),
        ({"enable_pdmux": True}, ["enable-pdmux"]),
    ],
)
def test_flags_that_break_our_steps_are_named(given: dict[str, Any], flags: list[str]) -> None:
    usual = {
        "enable_dp_attention": False,
        "pp_size": 1,
        "disaggregation_mode": "null",
        "enable_return_hidden_states": False,
    }
    args: Any = SimpleNamespace(**{**usual, **given})
    assert list(refused_flags(args)) == flags
