"""What an engine counts of its work."""

from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.plugin import work
from seer_sgl.types import EngineWork


def batch(tokens: int | None, extends: bool = True) -> Any:
    mode = SimpleNamespace(is_extend=lambda: extends)
    return SimpleNamespace(forward_mode=mode, extend_num_tokens=tokens)


def test_prefilled_tokens_are_counted_and_decoding_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_prefilled", 0)
    scheduler = SimpleNamespace(forward_ct=4)
    work.batch_begins(scheduler, batch(7))
    work.batch_begins(scheduler, batch=batch(5))
    work.batch_begins(scheduler, batch(16, extends=False))
    work.batch_begins(scheduler, batch(None))
    assert work.report(scheduler) == EngineWork(forward_steps=4, prefilled_tokens=12)
