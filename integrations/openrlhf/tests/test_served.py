"""`seer-sgl serve` as a child process: its start, its end and its environment."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fake_seer_sgl import COMMAND
from seer_openrlhf.checks import ServeError, unhealthy
from seer_openrlhf.flags import FLAGS, SeerFlags
from seer_openrlhf.served import LOGS, Child, served, server_environment

PAUSES = "seer_openrlhf.served.PAUSES_S"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, where the log is written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flags_for(folder: Path, mode: str, **others: Any) -> SeerFlags:
    config = folder / "config.yaml"
    config.write_text(mode)
    return SeerFlags(**{"config": str(config), "command": COMMAND, "timeout_s": 60.0, **others})


def started(folder: Path) -> dict[str, Any]:
    """Returns what the fake was started with; waits for it."""
    while not (folder / "started").exists():
        time.sleep(0.01)
    found: dict[str, Any] = json.loads((folder / "started").read_text())
    return found


def log_of(folder: Path) -> Path:
    """Returns the only log in the folder, as messages name it."""
    (log,) = (folder / LOGS).iterdir()
    return log.relative_to(folder)


def wait_for_end(pid: int) -> None:
    """Waits until the process is gone, or is a zombie of another parent."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)


def test_the_block_runs_while_the_server_is_ready_and_ends_it(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(flags_for(folder, "ready")) as url:
        assert unhealthy(url) is None
        found = started(folder)
    options = found["options"]
    assert found["command"] == "serve"
    assert options["--config"] == str(folder / "config.yaml")
    assert url == f"http://{options['--host']}:{options['--port']}"
    assert not Path(f"/proc/{found['pid']}").exists()
    assert "refused" in str(unhealthy(url))
    assert capfd.readouterr().err == (
        f"seer-openrlhf: seer-sgl serve is ready at {url}; its log: {log_of(folder)}\n"
    ), "an end that the block asked for is not reported"


def test_the_server_ends_also_after_an_error_in_the_block(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), served(flags_for(folder, "ready")):
        raise KeyboardInterrupt
    assert not Path(f"/proc/{started(folder)['pid']}").exists()


def test_a_server_that_ends_at_its_start_is_one_line_with_its_reason(folder: Path) -> None:
    with pytest.raises(ServeError) as caught, served(flags_for(folder, "broken")):
        pytest.fail("it is not ready")
    assert str(caught.value) == (
        f"seer-sgl serve ended with status 1: engines.count: 0 is below 1; "
        f"its log: {log_of(folder)}"
    )


def test_a_server_that_is_never_ready_is_ended_after_the_timeout(folder: Path) -> None:
    flags = flags_for(folder, "starting", timeout_s=0.5)
    with (
        pytest.raises(ServeError, match=r"^seer-sgl serve is not ready after 0.5 s: "),
        served(flags),
    ):
        pytest.fail("it is not ready")
    if (folder / "started").exists():  # else it ended before it did anything
        assert not Path(f"/proc/{started(folder)['pid']}").exists()


def test_a_server_that_is_killed_during_the_block_is_reported(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(threading.enumerate())
    with served(flags_for(folder, "ready", wait_s=0.0)):
        (watcher,) = set(threading.enumerate()) - before
        os.kill(started(folder)["pid"], signal.SIGKILL)
        watcher.join()
    *_, line = capfd.readouterr().err.splitlines()
    assert line == (
        f"seer-openrlhf: seer-sgl serve ended by SIGKILL: starting; its log: {log_of(folder)}"
    )


def test_a_log_that_was_removed_keeps_no_server_from_its_restart(folder: Path) -> None:
    child = Child(Mock(returncode=-9), folder / "removed.log")
    assert child.end() == (
        "seer-sgl serve ended by SIGKILL: the log cannot be read: No such file or directory; "
        f"its log: {folder / 'removed.log'}"
    )


def test_a_server_that_is_killed_is_restarted_at_its_url(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PAUSES, (0.0,))
    with served(flags_for(folder, "ready")) as url:
        first = started(folder)
        (folder / "started").unlink()
        os.kill(first["pid"], signal.SIGKILL)
        second = started(folder)
        while unhealthy(url) is not None:
            time.sleep(0.01)
    assert second["options"] == first["options"] and second["pid"] != first["pid"]
    assert not Path(f"/proc/{second['pid']}").exists()
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(";")[0].partition(" at ")[0] for line in lines] == [
        "seer-openrlhf: seer-sgl serve is ready",
        "seer-openrlhf: seer-sgl serve ended by SIGKILL: starting",
        "seer-openrlhf: seer-sgl serve is being restarted",
    ]
    assert len({line.rpartition(": ")[2] for line in lines}) == 2, "each start has its log"


def test_a_server_that_ends_again_and_again_is_given_up(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PAUSES, (0.0, 0.0))
    before = set(threading.enumerate())
    with served(flags_for(folder, "ready")):
        (keeper,) = set(threading.enumerate()) - before
        (folder / "config.yaml").write_text("broken")
        os.kill(started(folder)["pid"], signal.SIGKILL)
        keeper.join()
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == "seer-openrlhf: it is not restarted: it has ended 3 times in a row"
    assert sum("ended with status 1: engines.count: 0 is below 1" in line for line in lines) == 2


def test_a_block_that_ends_between_two_starts_leaves_no_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PAUSES, (10**6,))
    before = set(threading.enumerate())
    with served(flags_for(folder, "ready")):
        pid = started(folder)["pid"]
        os.kill(pid, signal.SIGKILL)
    assert set(threading.enumerate()) == before
    assert not Path(f"/proc/{pid}").exists()


def test_a_killed_trainer_leaves_no_server(folder: Path) -> None:
    program = (
        "import time\n"
        "from seer_openrlhf.flags import SeerFlags\n"
        "from seer_openrlhf.served import served\n"
        f"with served({flags_for(folder, 'ready')!r}):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert trainer.stdout is not None
    with trainer.stdout as output:
        assert output.readline() == b"ready\n"
    trainer.kill()
    trainer.wait()
    wait_for_end(started(folder)["pid"])


def test_a_script_that_runs_seer_sgl_is_ended_with_it(folder: Path) -> None:
    script = folder / "start.sh"
    script.write_text(f'#!/bin/sh\n{COMMAND} "$@"\nexit 0\n')
    script.chmod(0o700)
    with served(flags_for(folder, "ready", command=str(script))):
        pid = started(folder)["pid"]
    wait_for_end(pid)


def test_a_program_that_does_not_exist_is_named(folder: Path) -> None:
    flags = flags_for(folder, "ready", command="/no/such/seer-sgl --debug")
    with (
        pytest.raises(ServeError, match=r"^--seer.command: there is no program /no/such/seer-sgl$"),
        served(flags),
    ):
        pytest.fail("it cannot start")


def test_a_log_that_cannot_be_written_is_named(folder: Path) -> None:
    LOGS.write_text("a file")
    with (
        pytest.raises(ServeError, match=f"^{LOGS}: a log cannot be written: "),
        served(flags_for(folder, "ready")),
    ):
        pytest.fail("it cannot start")


def test_runs_in_one_folder_have_a_log_each_that_only_the_owner_can_read(folder: Path) -> None:
    with served(flags_for(folder, "ready")), served(flags_for(folder, "ready")):
        assert [log.stat().st_mode & 0o777 for log in LOGS.iterdir()] == [0o600, 0o600]


def test_the_servers_environment_has_its_tokens_and_nothing_of_the_trainers_python() -> None:
    environment = {"PATH": "/bin", "PYTHONPATH": "/trainer", FLAGS: "{}", "MINE": "t", "HERS": "a"}
    flags = SeerFlags(token_env="MINE", admin_token_env="HERS")
    kept = server_environment(environment, flags)
    assert kept == {
        "PATH": "/bin",
        "MINE": "t",
        "HERS": "a",
        "SEER_SGL_SERVER_KEY": "t",
        "SEER_SGL_ADMIN_KEY": "a",
    }
    assert server_environment({"PATH": "/bin"}, flags) == {"PATH": "/bin"}
