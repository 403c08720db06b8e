"""Parts of `make` run at the same time, print what they did, and fail if one of them does."""

from pathlib import Path

import pytest

from tests.support import phases

MAKEFILE = """
here:
	@touch here.ran; until test -e there.ran; do sleep 0.05; done
there:
	@touch there.ran; until test -e here.ran; do sleep 0.05; done; echo there is done
fails:
	@exit 3
never:
	@touch never.ran
"""
pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with targets that wait for one another."""
    (tmp_path / "Makefile").write_text(MAKEFILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_sequences_run_at_the_same_time(capfd: pytest.CaptureFixture[str]) -> None:
    assert phases.main(["here", phases.BESIDE, "there"]) == 0
    printed = capfd.readouterr().out
    assert "\nthere:\nthere is done\n" in printed
    rows = [line.split()[0] for line in printed.splitlines()[-4:]]
    assert (rows[0], set(rows[1:3]), rows[3]) == ("target", {"here", "there"}, "all")


@pytest.mark.parametrize("arguments", [("fails", "never"), (phases.BESIDE, "fails", "never")])
def test_a_target_that_fails_is_the_last_of_its_sequence(
    folder: Path, arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert phases.main(arguments) == 2, "the status of make"
    assert not (folder / "never.ran").exists()
    assert "exit status 2" in capfd.readouterr().out
