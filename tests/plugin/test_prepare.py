"""The seeded sampler is used once before an engine is ready."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from seer_sgl.plugin.prepare import draw_with_seeds


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_deterministic_engine_draws_for_one_row_and_for_several(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    drawn: list[tuple[Any, Any, Any]] = []
    sampler: Any = ModuleType("sampler")
    sampler.sampling_from_probs_torch = lambda probs, sampling_seed, positions: drawn.append(
        (tuple(probs.shape), tuple(sampling_seed.shape), tuple(positions.shape))
    )
    monkeypatch.setitem(sys.modules, "sglang.srt.layers.sampler", sampler)
    scheduler: Any = SimpleNamespace(
        device="cpu",
        model_config=SimpleNamespace(vocab_size=10),
        server_args=SimpleNamespace(enable_deterministic_inference=deterministic),
    )
    draw_with_seeds(None, scheduler)
    assert drawn == ([((1, 10), (1,), (1,)), ((2, 10), (2,), (2,))] if deterministic else [])
