"""The launcher with fake server processes: parallel start, limits, reasons and clean-up."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typing_extensions import override

from seer_sgl.config import FleetConfig, parse, with_values
from seer_sgl.engine.describe import describe
from seer_sgl.engine.fleet import Fleet, open_fleet
from seer_sgl.engine.launch import local, server
from seer_sgl.engine.launch.launcher import EngineProcess, EngineStart, Launcher
from seer_sgl.engine.launch.process import require_model
from seer_sgl.engine.launch.standalone import exec_engine
from seer_sgl.engine.opening import open_site
from seer_sgl.engine.session import open_session
from seer_sgl.errors import ConfigError, EngineStartError
from seer_sgl.link import contract
from seer_sgl.link.server import LinkServer
from seer_sgl.processes import child
from seer_sgl.processes.child import free_port
from seer_sgl.timing import DEFAULT, Timing
from tests.engine.fake_launched import ASKED
from tests.fake_sglang import FakeSGLang, serving
from tests.support.links import engine
from tests.support.processes import owned
from tests.support.timing import OVER_JUMPS
from tests.support.waiting import jump, until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_servers", "nothing_left")]

# The command line of a fake server's child.
CHILD = (sys.executable, "-c", "import time; time.sleep(600)")


def config(model: Path, mode: str, **engines: Any) -> FleetConfig:
    tree = {
        "model": {"path": str(model)},
        "engines": {"count": 2, "sglang": {"mode": mode}, **engines},
    }
    return parse(tree).fleet


async def test_two_fleets_on_one_machine_choose_different_ports(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_held", None)
    async with open_site(config(model, "serve"), DEFAULT):
        port = free_port()
        monkeypatch.setattr(child, "PORTS", range(port, port + 1))
        monkeypatch.setattr(child, "_given", set())  # as in the process of another fleet
        with pytest.raises(ConfigError, match="no free port"):
            free_port()
    assert child._held
    os.close(child._held.pop())


async def test_engines_start_together_pinned_and_are_gone_at_the_end(
    model: Path, tmp_path: Path, log_lines: list[str]
) -> None:
    core = min(os.sched_getaffinity(0))
    settings = config(model, "serve", cores=[[core], [core]])
    async with open_fleet(settings, tmp_path / "logs") as opened:
        engines = opened.engines
        assert [engine.info.engine_id for engine in engines] == ["e0", "e1"]
        assert len({engine.info.url for engine in engines}) == 2
        assert len(owned()) == 4
        # The stand-ins have children at once, on a busy machine before they are pinned.
        servers = [pid for pid in owned() if psutil.Process(pid).ppid() == os.getpid()]
        assert [os.sched_getaffinity(pid) for pid in servers] == [{core}, {core}]
        assert (await engines[1].load()).used_tokens == 0
    assert log_lines[0].startswith("starting 2 SGLang engine(s)")
    assert sum("ready after" in line for line in log_lines) == 2
    assert "loading weights" in (tmp_path / "logs" / "e1.log").read_text()


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("die", r"^engine e. ended with status 3 while starting(?s:.*) the weights are gone$"),
        ("stock", "runs without the seer-sgl plugin"),
    ],
)
async def test_an_engine_that_cannot_be_used_is_refused_with_the_reason(
    mode: str, reason: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(EngineStartError, match=reason):
        await start_fleet(config(model, mode), tmp_path)


async def start_fleet(settings: FleetConfig, log_dir: Path, timing: Timing = DEFAULT) -> None:
    async with open_fleet(settings, log_dir, timing=timing):
        pass


async def test_a_server_of_another_start_that_answers_is_not_taken(
    model: Path, tmp_path: Path
) -> None:
    settings = config(model, "other", count=1, start_timeout_s=60)
    start = asyncio.create_task(start_fleet(settings, tmp_path, OVER_JUMPS))
    log = tmp_path / "e0.log"
    await until(lambda: start.done() or (log.exists() and log.read_text().count(ASKED) >= 2))
    assert not start.done(), "the one that was started may answer later"
    jump(60.0)
    with pytest.raises(EngineStartError, match="another server than the one started answers at"):
        await start


async def test_an_engine_that_never_comes_up_is_given_up(
    model: Path, tmp_path: Path, log_lines: list[str]
) -> None:
    settings = config(model, "hang", start_timeout_s=60)
    start = asyncio.create_task(start_fleet(settings, tmp_path, Timing(start_remind_s=0.2)))
    late = "e0 not ready after"
    await until(lambda: any(late in line and "loading weights" in line for line in log_lines))
    jump(60.0)
    with pytest.raises(EngineStartError, match=r"not ready after 60 s: engine e[01] .*"):
        await start


async def test_cancelling_the_start_leaves_nothing(model: Path, tmp_path: Path) -> None:
    task = asyncio.create_task(start_fleet(config(model, "hang"), tmp_path))
    await until(lambda: len(owned()) == 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_exact_engines_run_one_kernel_on_a_gpu_and_what_cannot_starts_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (local, server):
        monkeypatch.setattr(module, "gpu_visible", lambda: True)
    settings = config(model, "serve", count=1, exact=True)
    async with open_fleet(settings, tmp_path):
        (command,) = {tuple(psutil.Process(pid).cmdline()) for pid in owned()} - {CHILD}
        flags = " ".join(command)
        assert "--attention-backend triton" in flags
        assert "--speculative-algorithm SEER_GROUP --speculative-num-draft-tokens 1" in flags
        assert "--enable-deterministic-inference" in flags
    settings.engines.sglang["attention_backend"] = "flashinfer"
    with pytest.raises(ConfigError, match=r"^engines\.sglang\.attention-backend: flashinfer, but"):
        await start_fleet(settings, tmp_path)


def ids(fleet: Fleet) -> list[str]:
    return [engine.info.engine_id for engine in fleet.engines]


async def test_a_fleet_grows_and_shrinks_while_its_engines_run(model: Path, tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    settings = config(model, "serve", cores=[[cores[0]], [cores[-1]]])
    async with open_fleet(settings, tmp_path) as opened:
        with pytest.raises(ConfigError, match=r"engines\.cores: 2 lists, and engine 3 needs one"):
            await opened.start_engine()
        first = {pid for pid in owned() if os.sched_getaffinity(pid) == {cores[0]}}
        await opened.stop_engine("e0")
        assert ids(opened) == ["e1"]
        assert len(owned()) == 2
        assert not first & set(owned()) or cores[0] == cores[-1]
        (added,) = await opened.start_engine()
        assert added.info.engine_id == "e3", "an id is never reused"
        assert (await added.load()).used_tokens == 0
        assert ids(opened) == ["e1", "e3"]
        assert [len(os.sched_getaffinity(pid)) for pid in owned()] == [1] * 4
        assert (tmp_path / "e3.log").exists()
        with pytest.raises(ConfigError, match="engine e0 is not in the fleet"):
            await opened.stop_engine("e0")
        with pytest.raises(ConfigError, match=r"engines\.launch: local cannot join"):
            await opened.join("http://127.0.0.1:1")


async def test_an_engine_that_fails_to_join_a_running_fleet_leaves_nothing(
    model: Path, tmp_path: Path
) -> None:
    settings = config(model, "serve", count=1)
    async with open_fleet(settings, tmp_path) as opened:
        before = owned()
        settings.engines.sglang["mode"] = "die"
        with pytest.raises(EngineStartError, match="e1 ended with status 3 while starting"):
            await opened.start_engine()
        settings.engines.sglang["mode"] = "hang"
        task = asyncio.create_task(opened.start_engine())
        await until(lambda: len(owned()) == 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: sorted(owned()) == sorted(before))
        assert ids(opened) == ["e0"]
        assert (await opened.engines[0].load()).used_tokens == 0


async def test_an_engine_that_is_being_started_when_the_fleet_closes_is_ended(
    model: Path, tmp_path: Path
) -> None:
    async with open_fleet(config(model, "serve", count=1), tmp_path) as opened:
        starting = asyncio.create_task(opened.start_engine())
        await asyncio.sleep(0)  # its process is being created
    with pytest.raises(EngineStartError, match=r"e1 (was stopped|ended with .*) while"):
        await starting


async def test_engines_that_draft_have_a_hub_beside_them(model: Path, tmp_path: Path) -> None:
    settings = config(model, "serve", count=1)
    settings = settings._replace(draft=with_values(settings.draft, {"scope": "fleet"}))
    async with open_fleet(settings, tmp_path) as opened:
        assert opened.drafts is not None
        before = await opened.drafts.facts()
        assert before is not None
        assert len(owned()) == 3, "the server, its child and the hub"
        assert (tmp_path / "drafthub.log").exists()
        await opened.start_engine()
        after = await opened.drafts.facts()
        assert after is not None
        assert after["instance"] == before["instance"], "it is the same hub"


async def test_a_running_server_is_joined_and_outlives_the_fleet(tmp_path: Path) -> None:
    async with serving(FakeSGLang()) as one, serving(FakeSGLang()) as two:
        async with open_fleet(joined(one), tmp_path) as opened:
            (engine,) = await opened.join(f"{two}/")
            assert (engine.info.engine_id, engine.info.url) == ("e1", two)
            await opened.stop_engine("e0")
            assert ids(opened) == ["e1"]
            with pytest.raises(ConfigError, match=r"engines\.launch: external starts no engines"):
                await opened.start_engine()
        async with open_session() as session:
            assert all([await describe(session, "e", url) for url in (one, two)])


@contextlib.asynccontextmanager
async def pooled_server(**state: str) -> AsyncIterator[str]:
    """Runs a server with our plugin and a KV pool. `state`: more of what it reports of the pool."""
    pool: dict[str, Any] = {"namespace": "n", "kv_bytes_per_token": 8, **state}
    plugin = {"version": "1", "missing": [], "instance": "one", "pool": pool}
    async with serving(FakeSGLang(plugin=plugin)) as url:
        yield url


def joined(url: str, **engines: Any) -> FleetConfig:
    return parse({"engines": {"launch": "external", "urls": [url], **engines}}).fleet


@pytest.mark.parametrize("token", ["right", "wrong"])
async def test_an_external_engine_has_a_pool_for_us_once_its_plugin_is_linked(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contract.LINK_TOKEN, "right")
    link = f"127.0.0.1:{free_port()}"
    address = LinkServer(token)
    address.url = f"http://{link}/link"
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(engine(address, "one"))
        url = await stack.enter_async_context(pooled_server())
        opening = open_fleet(
            joined(url, link=link),
            tmp_path,
            timing=Timing(link_timeout_s=30.0 if token == "right" else 0.5),
        )
        if token == "right":
            opened = await stack.enter_async_context(opening)
            assert opened.engines[0].info.pool == "n"
        else:
            with pytest.raises(EngineStartError, match=f"does not connect .* http://{link}/link"):
                await stack.enter_async_context(opening)


class Ending(EngineProcess):
    """The process of a server that ends once the server was described, before it is linked."""

    exit_status = None
    log = Path("e0.log")
    described = False

    @override
    def exit_reason(self) -> str | None:
        return "its process ended with status -9" if self.described else None

    @override
    def note_shared_memory(self) -> None:
        self.described = True


class OneServer(Launcher):
    """Starts the server that already runs at `server`."""

    def __init__(self, server: str) -> None:
        self.server = server

    @override
    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        return EngineStart(engine_id, self.server, 60.0, Ending(), "one")

    @override
    async def restart(self, engine_id: str, kv_tokens: int) -> EngineStart:
        raise AssertionError("it was never in the fleet")


async def test_a_server_that_ends_before_its_plugin_is_linked_is_not_waited_for(
    model: Path,
) -> None:
    engines = config(model, "serve", count=1).engines
    async with pooled_server() as url, open_session() as session:
        fleet = Fleet(
            engines, OneServer(url), link=LinkServer(), drafts=None, session=session, restarts=[]
        )
        with pytest.raises(EngineStartError, match=r"^engine e0: its process ended with status -9"):
            await fleet.start_engine()


async def test_a_pool_without_a_link_is_not_used(tmp_path: Path) -> None:
    async with (
        pooled_server() as url,
        open_fleet(joined(url), tmp_path) as opened,
    ):
        assert opened.engines[0].info.pool is None


async def test_a_server_whose_pool_is_broken_is_refused_without_a_wait(tmp_path: Path) -> None:
    why = "the KV thread `read` ended"
    async with pooled_server(broken=why) as url:
        with pytest.raises(EngineStartError, match=rf"^engine e0 \(.*\): {why}$"):
            await start_fleet(joined(url), tmp_path)


async def test_a_link_that_cannot_be_is_named_before_any_engine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = joined("http://127.0.0.1:9", link=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ConfigError, match=r"engines\.link: set SEER_SGL_LINK_TOKEN"):
            await start_fleet(config, tmp_path)
        monkeypatch.setenv(contract.LINK_TOKEN, "secret")
        with pytest.raises(ConfigError, match=r"engines\.link: port \d+: Address already in use"):
            await start_fleet(config, tmp_path)


@pytest.mark.parametrize("token", ["secret\n", "k\u00e4se", "\udcff"])
@pytest.mark.parametrize("name", [contract.API_KEY, contract.LINK_TOKEN])
async def test_a_token_that_http_cannot_carry_is_named_before_any_engine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, token: str
) -> None:
    monkeypatch.setenv(contract.LINK_TOKEN, "secret")
    monkeypatch.setenv(name, token)
    link = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=f"^{name}.*: a token has printable ASCII characters"):
        await start_fleet(joined("http://127.0.0.1:9", link=link), tmp_path)


async def test_a_missing_sglang_is_one_line_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^SGLang is not installed; `seer-sgl doctor` prints"):
        await start_fleet(parse({"model": {"path": str(tmp_path)}}).fleet, tmp_path)
    with pytest.raises(ConfigError, match=r"^SGLang is not installed"):
        exec_engine(["--help"])


def test_a_model_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    for wrong in ("/nowhere", "./nowhere", "a/b/c", str(tmp_path / "x")):
        with pytest.raises(ConfigError, match="does not exist"):
            require_model(wrong)
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        require_model(str(tmp_path))
    with pytest.raises(ConfigError, match="seer_sgl/nope does not exist"):
        require_model("seer_sgl/nope")  # looks like a hub id, but the first part is a folder here
    require_model("some-org/some-model")
