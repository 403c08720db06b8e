"""The report on drafting: differences of counters, also with unreachable or restarted engines."""

import asyncio
import json
from typing import Any

import pytest

from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import EngineUnavailable
from seer_sgl.report.draft_report import FleetDraftCounters, read, section
from tests.fake_sglang import FakeSGLang
from tests.support.drafting import engine, hub
from tests.support.fleets import PROMPTS, rolling
from tests.support.infos import info


def test_figures_are_what_was_counted_in_between() -> None:
    before = FleetDraftCounters.of({"a": engine(10), "b": engine(0)}, hub(100))
    after = FleetDraftCounters.of({"a": engine(14), "b": engine(4, verified_tokens=16)}, hub(150))
    drafting = section(before, after)
    assert drafting is not None
    engines = drafting.pop("engines")
    assert drafting == {
        "accept_length": 3.0,
        "plain_steps": 8,
        "verified_steps": {"3": 8},
        "drafted_by_position": [8, 8, 0],
        "accepted_by_position": [8, 0, 0],
        "sources": {"prompt": 0.0, "own": 0.0, "here": 0.25, "elsewhere": 0.75},
        "draft_cpu_s": 2.0,
        "hub": {
            "lag_s": {"mean": 0.01, "max": 0.3},
            "tokens_in": 50,
            "tokens_out": 100,
            "groups": 5,
        },
    }
    assert [one["engine_id"] for one in engines] == ["a", "b"]
    assert [one["accept_length"] for one in engines] == [2.0, 4.0]
    assert engines[0] == {
        "engine_id": "a",
        "accept_length": 2.0,
        "plain_steps": 4,
        "verified_steps": 4,
        "draft_cpu_s": 1.0,
        "received_tokens": 20,
        "refused_tokens": 0,
        "lost_messages": 0,
        "wait_s": {"mean": 0.5, "max": 2.0},
    }
    json.dumps(drafting)


def test_without_drafting_there_is_no_section() -> None:
    assert section(FleetDraftCounters(), FleetDraftCounters()) is None


DEEP: Any = []
for _ in range(900):  # levels: close to the JSON decoder's limit
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "change", [{"steps": "many"}, {"steps": {"wide": 3}}, {"sources": {"here": DEEP}}]
)
def test_an_engine_that_was_away_or_is_of_another_version_is_left_out(
    change: dict[str, Any],
) -> None:
    before = FleetDraftCounters.of({"a": engine(1), "b": engine(1), "d": engine(1)}, None)
    after = FleetDraftCounters.of(
        {"a": engine(3), "c": engine(3), "d": engine(3, **change)}, hub(3)
    )
    drafting = section(before, after)
    assert drafting is not None
    assert [one["engine_id"] for one in drafting["engines"]] == ["a"]
    assert (drafting["verified_steps"], drafting["hub"]) == ({"3": 2}, None)


def test_whoever_restarted_counts_from_there() -> None:
    drafting = section(
        FleetDraftCounters.of({"a": engine(100)}, hub(100)),
        FleetDraftCounters.of({"a": engine(2, "j")}, hub(20, "later")),
    )
    assert drafting is not None
    assert drafting["verified_steps"] == {"3": 2}
    assert drafting["hub"]["tokens_in"] == 20


def test_nothing_drafted_yet_is_no_division_by_zero() -> None:
    nothing = FleetDraftCounters.of({"a": engine(0, steps={}, drafted_by_position=[])}, hub(0))
    drafting = section(nothing, nothing)
    assert drafting is not None
    assert (drafting["accept_length"], drafting["verified_steps"]) == (None, {})
    assert set(drafting["sources"].values()) == {None}
    assert (
        drafting["hub"]["lag_s"] == drafting["engines"][0]["wait_s"] == {"mean": None, "max": None}
    )


class FakeEngine:
    def __init__(self, engine_id: str, says: Any) -> None:
        self._says = says
        self.info: EngineInfo = info(engine_id)

    async def drafting(self) -> dict[str, Any] | None:
        if isinstance(self._says, Exception):
            raise self._says
        if self._says == "nothing":
            await asyncio.Event().wait()
        drafting: dict[str, Any] | None = self._says
        return drafting


async def test_an_engine_that_does_not_answer_costs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engines = [
        FakeEngine("gone", EngineUnavailable("gone")),
        FakeEngine("closed", RuntimeError("Session is closed")),
        FakeEngine("stuck", "nothing"),
        FakeEngine("stock", None),
        FakeEngine("a", engine(1)),
    ]
    assert await read(engines, None, 0.01) == FleetDraftCounters.of({"a": engine(1)}, None)
    assert sorted(caplog.messages) == [
        "engine closed: its drafts were not counted: Session is closed",
        "engine gone: its drafts were not counted: gone",
        "engine stuck: its drafts were not counted: no answer within 0.01 s",
    ]


def drafting_fake() -> FakeSGLang:
    return FakeSGLang(
        plugin={"version": "1", "missing": [], "instance": "i", "draft": engine(10)}, delay_s=0.01
    )


@pytest.mark.parametrize("leave_early", [False, True])
async def test_a_run_reports_what_was_drafted_in_it(leave_early: bool) -> None:
    fake = drafting_fake()
    async with rolling(fake) as rollout:
        run = rollout.run(PROMPTS)
        async for _ in run:
            assert rollout.report()["drafting"] is None
            assert fake.plugin is not None
            fake.plugin["draft"] = engine(12)
            if leave_early:
                await run.aclose()
                break
        drafting = rollout.report()["drafting"]
    assert drafting["verified_steps"] == {"3": 2}
    assert drafting["hub"] is None
    assert [one["engine_id"] for one in drafting["engines"]] == ["e0"]


async def test_a_run_that_is_left_and_forgotten_ends_quietly_after_its_rollout() -> None:
    async with rolling(drafting_fake()) as rollout:
        run = rollout.run(PROMPTS)
        await anext(run)
    await run.aclose()
    assert rollout.report()["drafting"]["engines"] == []
