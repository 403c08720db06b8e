"""Rollouts on engines whose plugin lacks an ability, because their SGLang does."""

import logging
from typing import Any

import pytest

from seer_sgl import Rollout
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import LINK_TOKEN
from seer_sgl.plugin.plugin import Plugin
from seer_sgl.processes.child import free_port
from tests.fake_sglang import FakeSGLang, serving
from tests.support.fleets import all_groups, check, rolling

pytest.importorskip("torch", reason="the abilities of engines on a CPU need torch")
NAMES = [ability.name for ability in Plugin(on_cpu=True).abilities]
POOL = {"backend": "file", "directory": "pool", "namespace": "test"}
WHY = "SGLang 0.0.1: hook run_batch is gone"


def lacking(name: str, **fields: Any) -> FakeSGLang:
    fields = {"deterministic": False, **fields}
    return FakeSGLang(plugin={"version": "1", "missing": [], "off": {name: WHY}}, **fields)


@pytest.mark.parametrize("name", NAMES)
async def test_an_engine_that_lacks_what_no_key_demands_serves_and_the_report_names_it(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with rolling(lacking(name), FakeSGLang()) as rollout:
        check(await all_groups(rollout))
        engines = rollout.report()["engines"]
    assert [engine["off"] for engine in engines] == [{name: WHY}, {}]
    assert [line for line in caplog.messages if WHY in line] == [
        f"engine e0 runs without `{name}`: {WHY}"
    ]


@pytest.mark.parametrize(
    ("name", "key", "sections"),
    [
        ("exact", "engines.exact", {"engines": {"exact": True}}),
        ("exact", "enable-deterministic-inference", {"rollout": {"seed": 1}}),
        ("pool", "kv_pool.backend", {"kv_pool": POOL}),
        ("drafts", "draft.scope", {"draft": {"scope": "engine"}}),
        ("secrets", "engines.api_key", {"engines": {"api_key": "k"}}),
        ("ports", "engines.api_key", {"engines": {"api_key": "k"}}),
    ],
)
async def test_an_engine_that_lacks_what_a_key_demands_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, key: str, sections: dict[str, Any]
) -> None:
    monkeypatch.setenv(LINK_TOKEN, "token")
    own = {"link": f"127.0.0.1:{free_port()}", **sections.get("engines", {})}
    async with serving(lacking(name, deterministic=True, api_key=own.get("api_key"))) as url:
        engines = {"launch": "external", "urls": [url], **own}
        with pytest.raises(ConfigError) as raised:
            async with Rollout({**sections, "engines": engines}):
                pass
    assert str(raised.value).startswith(f"{key}: engine e0 (http://127.0.0.1:")
    assert str(raised.value).endswith(f") runs without `{name}`: {WHY}")
