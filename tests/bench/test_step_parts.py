"""Each part of a step has its own time only, and what no part has is `other`."""

from types import SimpleNamespace
from typing import Any

import pytest

from bench import step_parts
from bench.step_parts import KEY, Parts


class Engine:
    """A scheduler's thread whose parts take given times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 0.0
        monkeypatch.setattr(step_parts, "time", SimpleNamespace(thread_time=lambda: self._now))
        self.parts = Parts(full=2)

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


def test_a_step_is_divided_into_parts_by_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch)
    for requests, width in ((2, 1), (2, 5), (2, 5), (1, 1), (2, 1)):
        engine.step(requests, width)
    result: Any = SimpleNamespace(internal_state={})
    assert engine.parts.report(result) is result
    found = result.internal_state[KEY]
    assert found["steps"] == {"1 node": 1, "5 nodes": 2}, "the batch of one, and the last step, not"
    assert found["seconds"]["1 node"] == {"attention": 2, "model": 3, "other": 3}
    assert found["seconds"]["5 nodes"] == {"attention": 4, "model": 6, "other": 6}
