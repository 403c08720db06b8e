"""Each part of a step has its own time only, and what no part has is `other`."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import step_parts
from bench.step_parts import Parts


class Engine:
    """A scheduler's thread whose parts take given times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
        self._now = 0.0
        monkeypatch.setattr(step_parts, "time", SimpleNamespace(thread_time=lambda: self._now))
        monkeypatch.setattr(step_parts, "WRITE_EVERY", 1)
        self.parts = Parts(out, full=2)

    def step(self, requests: int, width: int) -> None:
        """Runs a step: 5 s of a model with 2 s of attention inside, 3 s of nothing."""
        mode = SimpleNamespace(is_decode=lambda: True)
        self.parts.begins(None, SimpleNamespace(forward_mode=mode, reqs=[None] * requests))
        if width > 1:
            self.parts.verifies(None, None, SimpleNamespace(width=width))
        self.parts.timed("model")(self._model)
        self._now += 3

    def _model(self) -> None:
        self._now += 1
        self.parts.timed("attention")(self._attention)
        self._now += 2

    def _attention(self) -> None:
        self._now += 2


def test_a_step_is_divided_into_parts_by_its_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch, tmp_path / "parts.json")
    for requests, width in ((2, 1), (2, 5), (2, 5), (1, 1), (2, 1)):
        engine.step(requests, width)
    found: dict[str, Any] = json.loads((tmp_path / "parts.json").read_text())
    assert found["steps"] == {"1 node": 1, "5 nodes": 2}, "the batch of one, and the last step, not"
    assert found["seconds"]["1 node"] == {"attention": 2, "model": 3, "other": 3}
    assert found["seconds"]["5 nodes"] == {"attention": 4, "model": 6, "other": 6}
