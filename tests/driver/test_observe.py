"""An observer of all runs, and the state of the engines."""

from collections.abc import Sequence

from typing_extensions import override

from seer_sgl.driver.groups import GroupMaker
from seer_sgl.engine_types import EngineLoad
from seer_sgl.types import Request
from tests.fake_sglang import FakeSGLang
from tests.support.drivers import LIMIT, Events, all_of, check, staged
from tests.support.timing import QUICK
from tests.support.waiting import until


class AllEvents(Events):
    """Records the events of all runs, and which requests were submitted."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted_uids: list[str] = []
        self.loads = 0

    @property
    def back(self) -> int:
        """The number of chunks that came back."""
        return self.kinds.count("grown") + self.kinds.count("lost")

    @override
    def submitted(self, requests: Sequence[Request], now: float) -> None:
        self.submitted_uids += [request.uid for request in requests]

    @override
    def ended(self, caller: str, now: float) -> None:
        self.kinds.append(f"ended {caller}")

    @override
    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        self.loads += 1


async def test_an_observer_of_all_runs_receives_runs_opened_before_and_after_it() -> None:
    events = AllEvents()
    async with staged(FakeSGLang()) as stage:
        before = stage.driver.open_run(caller="a")
        stage.driver.observe(events)
        (group,) = stage.groups(1, n=2)
        group.growing = True
        before.add([group])
        before.grow(group, GroupMaker("more", 1).requests(group, 1, LIMIT, 0.0))
        before.complete_group(group)
        before.complete()
        after = stage.driver.submit(stage.groups(2, run_id="b"), caller="b")
        check(await all_of(before), n=3)
        check(await all_of(after))
    assert len(events.submitted_uids) == len(set(events.submitted_uids)) == 3 + 8
    assert events.kinds.count("finished") == 3 + 8
    assert events.kinds.count("closed") == 3
    assert events.kinds.count("sent") == events.back
    assert sorted(kind for kind in events.kinds if "ended" in kind) == ["ended a", "ended b"]
    assert events.kinds[-2:] in (["closed", "ended a"], ["closed", "ended b"])


async def test_an_observer_of_all_runs_receives_the_chunks_of_a_closed_run() -> None:
    events = AllEvents()
    async with staged(FakeSGLang(delay_s=0.02)) as stage:
        stage.driver.observe(events)
        run = stage.driver.submit(stage.groups(2))
        await until(lambda: events.kinds.count("sent") == 8)
        run.close()
        await until(lambda: stage.driver.states()[0].inflight == 0)
        assert events.kinds.count("sent") == events.back
        assert len(events.failures) == 2


async def test_the_events_of_engines_come_once_however_many_runs_are_open() -> None:
    events = AllEvents()
    async with staged(FakeSGLang(), FakeSGLang(), joined=1, timing=QUICK) as stage:
        stage.driver.observe(events)
        runs = [stage.driver.open_run() for _ in range(3)]
        stage.driver.add_engine(stage.engines[1])
        await stage.driver.remove_engine("e1")
        await until(lambda: events.loads > 0)
        for run in runs:
            run.close()
            run.close()
    assert events.kinds == ["joined e1", "left e1", *(f"ended run {n}" for n in range(3))]


async def test_the_state_of_engines_shows_chunks_and_whether_they_serve() -> None:
    async with staged(FakeSGLang(delay_s=0.05), FakeSGLang(delay_s=0.05)) as stage:
        run = stage.driver.submit(stage.groups(2))
        await until(lambda: all(state.inflight for state in stage.driver.states()))
        assert all(state.promised_tokens for state in stage.driver.states())
        stage.driver.mark_stale("e1", "it missed an update")
        first, second = stage.driver.states()
        assert (first.available, first.stale) == (True, None)
        assert (second.available, second.stale) == (False, "it missed an update")
        await stage.driver.pause()
        assert stage.driver.paused
        stage.driver.resume()
        check(await all_of(run))
        assert not stage.driver.paused
