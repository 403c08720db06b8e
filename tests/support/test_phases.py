"""Parts of `make` run at the same time, print what they did, and fail if one of them does."""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.support import phases

MAKEFILE = """
fails:
	@echo it failed; exit 3
never:
	@touch never.ran
long-%:
	@trap 'echo interrupted >> $@.log' INT; touch $@.ran; \
	until test -e $@.log; do sleep 0.05; done; \
	sleep 0.3; echo cleaned >> $@.log
"""
pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with targets that wait for one another."""
    (tmp_path / "Makefile").write_text(MAKEFILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", [("fails", "never"), (phases.BESIDE, "fails", "never")])
def test_no_target_starts_after_one_that_fails(
    folder: Path, arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert phases.main(arguments) == 2, "the status of make"
    assert not (folder / "never.ran").exists()
    printed = capfd.readouterr().out
    assert printed.index("it failed") < printed.index("exit status 2")


def test_what_goes_wrong_beside_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError("no space")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match="no space"):
        phases.main([phases.BESIDE, "never"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_each_target_once_and_they_clean_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    targets = ["long-here", "never", phases.BESIDE, "long-there", "never"]
    command = [sys.executable, "-m", "tests.support.phases", *targets]
    names = ("long-here", "long-there")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as program:
        while not all((folder / f"{name}.ran").exists() for name in names):
            assert program.poll() is None
            time.sleep(0.05)
        program.send_signal(number)
        assert program.wait() != 0
        for name in names:
            assert (folder / f"{name}.log").read_text() == "interrupted\ncleaned\n"
    assert not (folder / "never.ran").exists()
