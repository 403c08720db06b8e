"""What a measured rollout does not know after a restart."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from seer_sgl.benchmark import measure
from seer_sgl.benchmark.measure import CpuClock, Workload, roll
from seer_sgl.benchmark.process_tree import ProcessTree, ServerProcesses
from seer_sgl.config import Config
from seer_sgl.engine_types import EngineInfo, EngineWork
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from tests.support.infos import info


class Process:
    """A process that has used some CPU time, and may end."""

    def __init__(self, used_s: float) -> None:
        self.used_s: float | None = used_s

    def cpu_times(self) -> Any:
        if self.used_s is None:
            raise psutil.NoSuchProcess(1)
        return SimpleNamespace(user=self.used_s, system=0.0)


class Engine:
    """An engine whose counters begin at its start. `instance`: a name for that."""

    def __init__(self) -> None:
        self.instance, self.steps = "first", 100

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(info("a"), instance=self.instance)

    async def flush(self) -> None:
        pass

    async def work(self) -> EngineWork:
        return EngineWork(forward_steps=self.steps, prefilled_tokens=self.steps)


def processes(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Returns the process of a server at the port of `info("a")`, and another one."""
    server: Any = Process(30.0)
    other: Any = Process(2.0)
    port = info("a").url.rpartition(":")[2]
    tree = ProcessTree([ServerProcesses([port], [server])], [other])
    monkeypatch.setattr(measure, "process_tree", lambda: tree)
    return server, other


def test_cpu_times_are_unknown_once_a_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    server, other = processes(monkeypatch)
    clock = CpuClock([info("a")])
    clock.start()
    server.used_s, other.used_s = 35.0, 2.5
    assert clock.stop()[1:] == (5.0, 0.5)
    server.used_s = None
    assert clock.stop()[1:] == (None, 0.5)
    server.used_s, other.used_s = 35.0, None
    assert clock.stop()[1:] == (5.0, None)


@pytest.mark.parametrize("restarts", [False, True])
async def test_work_is_unknown_if_a_server_was_restarted(
    restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()

    class Rolled:
        recorder = Recorder("r", 0, [info("a")], [], 0.0)

        def __init__(self, *_: object, **__: object) -> None: ...

        async def __aenter__(self) -> "Rolled":
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def run(self, *_: object) -> AsyncIterator[Any]:
            engine.steps += 40
            if restarts:
                engine.instance, engine.steps = "second", 25
            none: list[Any] = []
            for group in none:
                yield group

        def report(self) -> dict[str, Any]:
            return report(self.recorder)

    processes(monkeypatch)
    monkeypatch.setattr(measure, "Rollout", Rolled)
    fleet: Any = SimpleNamespace(engines=[engine])
    row = (await roll("a", fleet, Config(), Workload(1, []), number=0, reference=None)).row
    assert (row.forward_steps, row.prefilled_tokens) == ((None, None) if restarts else (40, 40))
