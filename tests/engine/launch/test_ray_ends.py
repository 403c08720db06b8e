"""How the driver's side of an actor ends, with the calls of Ray replaced."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from seer_sgl.engine.launch.ray_host import Hosted, Output
from seer_sgl.errors import ConfigError, EngineDelayed, EngineStartError
from tests.support.waiting import DEADLINE_S, until

pytestmark = pytest.mark.process  # it imports Ray
HOSTED = Hosted("127.0.0.1", 1, 2, "node")


class Method:
    """A method of an actor."""

    def __init__(self, work: Callable[..., Awaitable[Any]]) -> None:
        self.remote = work


class FakeHost:
    """An actor whose server logs a line, and then ends like `last`."""

    def __init__(self, last: Output | Exception) -> None:
        self.outputs: list[Output | Exception] = [Output(b"loading\n", None), last]
        self.follow = Method(self._follow)
        self.stopping = asyncio.Event()
        self.stop = Method(self._stop)

    async def _follow(self, _: int) -> Output:
        await asyncio.sleep(0.01)
        output = self.outputs.pop(0)
        if isinstance(output, Exception):
            raise output
        return output

    async def _stop(self) -> None:
        self.stopping.set()
        await asyncio.sleep(0.2)


async def test_a_log_that_cannot_be_written_hides_no_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from seer_sgl.engine.launch.ray_process import RemoteProcess

    log = tmp_path / "logs" / "e0.log"
    process = RemoteProcess(FakeHost(Output(b"the end\n", 3)), HOSTED, log)
    log.unlink()
    log.parent.rmdir()
    await until(lambda: process.exit_status == 3)
    assert "ended with status 3" in (process.exit_reason() or "")
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == [
        f"log file {log}: No such file or directory; a part of it is missing"
    ]


async def test_an_actor_is_lost_also_if_the_cluster_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray
    from ray.exceptions import RayActorError

    from seer_sgl.engine.launch.ray_process import RemoteProcess

    def nodes() -> None:
        raise ConnectionError("the head is gone")

    monkeypatch.setattr(ray, "nodes", nodes)
    host = FakeHost(RayActorError())
    process = RemoteProcess(host, HOSTED, tmp_path / "e0.log")
    await until(lambda: process.exit_reason() is not None)
    assert "the cluster does not answer" in (process.exit_reason() or "")


def refuse(*_: Any, **__: Any) -> NoReturn:
    """Fails like a call of Ray whose head has ended."""
    from ray.exceptions import RaySystemError

    raise RaySystemError("the head is gone")


class Placing:
    """The calls of Ray that place engines, replaced. `freed`: what it was given back."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        import ray

        from seer_sgl.engine.launch import ray as ray_launch
        from seer_sgl.engine.launch.ray_actor import Actor

        self.module: Any = ray_launch
        self.freed: list[str] = []
        self.actor = Actor.__new__(Actor)
        self.actor.hosted, self.actor.process, self.actor._host = None, None, None
        patch.setattr(ray, "kill", lambda _: self.freed.append("actor"))
        patch.setattr(ray_launch, "placement_group", lambda *_, **__: "group")
        patch.setattr(ray_launch, "PlacementGroupSchedulingStrategy", lambda *_: None)
        patch.setattr(ray_launch, "remove_placement_group", self.freed.append)
        patch.setattr(ray_launch, "Actor", lambda *_, **__: self.actor)

    def launcher(self, log_dir: Path) -> Any:
        plan: Any = SimpleNamespace(engines=SimpleNamespace(start_limit_s=lambda _: 1.0))
        return self.module.RayLauncher(plan, {"GPU": 1}, log_dir, 1.0)


async def test_a_room_is_freed_although_the_call_that_leaves_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placing, host = Placing(monkeypatch), FakeHost(Output(b"", 0))
    placing.actor.hosted, placing.actor._host = HOSTED, host
    launcher = placing.launcher(tmp_path)
    launcher._wanted.add("e0")
    launcher._rooms["e0"] = placing.module._Room({"GPU": 1})
    restart = asyncio.create_task(launcher.restart("e0", 100))
    await host.stopping.wait()
    restart.cancel()
    await asyncio.wait({restart})
    await launcher.aclose()
    assert {"actor", "group"} <= set(placing.freed)


@pytest.mark.parametrize(("refused", "freed"), [("placement_group", []), ("Actor", ["group"])])
async def test_an_engine_that_ray_itself_does_not_place_is_delayed_and_leaves_no_reservation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, freed: list[str]
) -> None:
    placing = Placing(monkeypatch)
    monkeypatch.setattr(placing.module, refused, refuse)
    with pytest.raises(EngineDelayed, match=r"^engine e0: Ray gives it no place: "):
        await placing.launcher(tmp_path).start("e0")
    assert placing.freed == freed


async def test_an_engine_whose_place_ray_does_not_name_starts_no_server_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placing, ended = Placing(monkeypatch), list[str]()

    async def start(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("start")

    placing.actor._host = SimpleNamespace(start=Method(start))
    monkeypatch.setattr(placing.module, "placement_group_table", refuse)
    launcher = placing.launcher(tmp_path)
    launcher._room_s = 0.0
    with pytest.raises(EngineDelayed, match=r"^engine e0: its actor ended: .*the head is gone"):
        await launcher.start("e0")
    assert ended == ["start"]
    assert placing.freed == ["actor", "group"]


class Away:
    """Calls of Ray that block until its head is back."""

    def __init__(self) -> None:
        self.called, self.back = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.called.set()
        assert self.back.wait(DEADLINE_S), "the event loop is blocked"


@pytest.mark.parametrize("by", ["cancel", "stop"])
async def test_a_head_that_is_away_blocks_no_event_loop_and_keeps_no_reservation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    head, placing = Away(), Placing(monkeypatch)

    def reserve(*_: Any, **__: Any) -> str:
        head.wait()
        return "group"

    monkeypatch.setattr(placing.module, "placement_group", reserve)
    launcher = placing.launcher(tmp_path)
    starting = asyncio.create_task(launcher.start("e0"))
    await until(head.called.is_set)
    if by == "cancel":
        starting.cancel()
    else:
        await launcher.stop("e0")
    head.back.set()
    await asyncio.wait({starting})
    assert starting.cancelled() or isinstance(starting.exception(), EngineStartError)
    assert placing.freed == ["actor", "group"]


async def test_a_store_node_that_ray_itself_does_not_start_counts_as_ended_and_blocks_no_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seer_sgl.engine.launch import ray_stores

    head = Away()

    def lose(*_: Any, **__: Any) -> None:
        head.wait()
        refuse()

    monkeypatch.setattr(ray_stores, "Actor", lose)
    store = ray_stores.RayStore(0, {}, {}, memory=1, log_dir=tmp_path, place_s=1.0)
    starting = asyncio.create_task(store.start())
    await until(head.called.is_set)
    head.back.set()
    with pytest.raises(ConfigError, match=r"^KV pool: store0: .*the head is gone"):
        await starting
    assert "the head is gone" in (store.exit_reason() or "")
