"""The check for missing hooks, and the plugin's report. Without SGLang."""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.link.contract import REPORT
from seer_sgl.plugin.ability import Ability
from seer_sgl.plugin.hook import Hook
from seer_sgl.plugin.plugin import Plugin
from seer_sgl.plugin.speculation import exactness

from .stand_ins import replace_module


def stock() -> None:
    """A function of SGLang's."""


def watch() -> None:
    """A hook's function."""


def wrapped(function: Callable[[], None], hook: Callable[[], None]) -> Callable[[], None]:
    """Returns the wrapper that HookRegistry installs instead of a function."""

    @functools.wraps(function)
    def wrapper() -> None:
        hook()
        function()

    return wrapper


def of_one_hook(target: str) -> Ability:
    hook = Hook(target, watch, "before", "A test needs it.", "It ends.")
    return Ability("one", [hook], "It ends.")


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        (wrapped(stock, watch), []),
        (wrapped(wrapped(stock, watch), print), []),
        (wrapped(stock, print), ["fake_sglang_module.function"]),
        (stock, ["fake_sglang_module.function"]),
        (None, ["fake_sglang_module.function"]),
    ],
    ids=["hooked", "hooked, then wrapped", "wrapped by others", "stock", "gone"],
)
def test_a_hook_is_missing_unless_its_own_wrapper_is_there(
    monkeypatch: pytest.MonkeyPatch, function: Any, missing: list[str]
) -> None:
    members = {} if function is None else {"function": function}
    replace_module(monkeypatch, "fake_sglang_module", **members)
    loaded = Plugin(on_cpu=False)
    loaded.abilities = [of_one_hook("fake_sglang_module.function")]
    assert loaded.missing() == missing


def idle_scheduler() -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=100, is_image_understandable_model=True),
        forward_ct=3,
        waiting_queue=[],
        running_batch=SimpleNamespace(batch_is_full=False),
        tree_cache=SimpleNamespace(),
        tp_worker=SimpleNamespace(model_runner="runner"),
    )


def test_a_scheduler_reports_the_plugin_without_weights_a_pool_or_drafting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exactness, "obstacle", lambda *_, **__: None)
    loaded = Plugin(on_cpu=False)
    loaded.abilities = [of_one_hook("no_such_module.function")]
    scheduler = idle_scheduler()
    state = SimpleNamespace(internal_state={"of others": 1})
    assert loaded.add_report(state, scheduler) is state
    report = state.internal_state.pop(REPORT)
    assert state.internal_state == {"of others": 1}
    assert report["missing"] == ["no_such_module.function"]
    assert (report["off"], report["vocab_size"]) == ({}, 100)
    assert (report["weights"], report["pool"], report["draft"]) == (None, None, None)
    assert report["work"] == {"forward_steps": 3, "prefilled_tokens": 0}


@pytest.mark.parametrize("on_cpu", [False, True])
def test_an_engine_on_a_gpu_reports_why_its_steps_may_round_differently(
    on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reason(runner: Any, paths: int, *, decodes: bool) -> str:
        return f"{runner} {paths} {decodes}"

    monkeypatch.setattr(exactness, "obstacle", reason)
    loaded = Plugin(on_cpu=on_cpu)
    loaded.abilities = []
    plain = "runner 1 True"
    assert loaded.report(idle_scheduler()).inexact == (None if on_cpu else plain)
    loaded.off = {"drafts": "no such function"}
    without = "`drafts` is off: no such function"
    assert loaded.report(idle_scheduler()).inexact == (None if on_cpu else without)


def test_what_is_off_is_reported_and_takes_its_figures_along() -> None:
    loaded = Plugin(on_cpu=True)
    loaded.abilities = [of_one_hook("no_such_module.function")._replace(name="counters")]
    loaded.off = {"counters": "a", "exact": "b", "pool": "c"}
    report = loaded.report(idle_scheduler())
    assert (report.missing, report.off) == ([], loaded.off)
    assert (report.work, report.waiting, report.inexact) == (None, [], "b")
