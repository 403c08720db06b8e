"""The counters of an engine's work."""

from types import SimpleNamespace
from typing import Any

from seer_sgl.engine_types import EngineWork
from seer_sgl.plugin.work import Work


def batch(tokens: int | None, extends: bool = True, decoding: list[str] | None = None) -> Any:
    mode = SimpleNamespace(is_extend=lambda: extends)
    return SimpleNamespace(forward_mode=mode, extend_num_tokens=tokens, decoding_reqs=decoding)


def test_prefilled_tokens_are_counted_and_decoding_is_not() -> None:
    work = Work()
    scheduler = SimpleNamespace(forward_ct=4)
    work.batch_begins(scheduler, batch(7))
    work.batch_begins(scheduler, batch=batch(5))
    work.batch_begins(scheduler, batch(16, extends=False))
    work.batch_begins(scheduler, batch(None))
    work.batch_begins(scheduler, batch(2, decoding=["a", "b"]))
    assert work.report(scheduler) == EngineWork(forward_steps=4, prefilled_tokens=12)
