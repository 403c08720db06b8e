"""The draft index and the seeded sampler are loaded before an engine is ready."""

from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seer_sgl.link.contract import ALGORITHM
from seer_sgl.plugin.prepare import draw_with_seeds, load_the_index

from .stand_ins import replace_module


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_deterministic_engine_draws_for_one_row_and_for_several(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    drawn: list[tuple[Any, Any, Any]] = []

    def draw(probs: Any, sampling_seed: Any, positions: Any) -> None:
        assert not torch.is_grad_enabled(), "as in SGLang's loop"
        drawn.append((tuple(probs.shape), tuple(sampling_seed.shape), tuple(positions.shape)))

    replace_module(monkeypatch, "sglang.srt.layers.sampler", sampling_from_probs_torch=draw)
    scheduler: Any = SimpleNamespace(
        device="cpu",
        model_config=SimpleNamespace(vocab_size=10),
        server_args=SimpleNamespace(enable_deterministic_inference=deterministic),
    )
    draw_with_seeds(None, scheduler)
    assert drawn == ([((1, 10), (1,), (1,)), ((2, 10), (2,), (2,))] if deterministic else [])


@pytest.mark.parametrize(("algorithm", "loads"), [(ALGORITHM, True), (None, False)])
def test_the_index_is_loaded_beside_the_model_if_the_engine_drafts(
    algorithm: str | None, loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: SimpleQueue[str] = SimpleQueue()
    monkeypatch.setattr("importlib.import_module", loaded.put)
    arguments: Any = SimpleNamespace(speculative_algorithm=algorithm)
    load_the_index(cast(Any, None), arguments)
    if loads:
        assert loaded.get(timeout=60) == "seer_sgl.draft.drafter"
    assert loaded.empty()
