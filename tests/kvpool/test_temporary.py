"""Temporary folders of living owners are kept, and folders of ended owners are removed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.kvpool.temporary import PREFIX, temporary_folder

OWNER = """
import sys, time
from pathlib import Path
from seer_sgl.kvpool.temporary import temporary_folder
with temporary_folder(Path(sys.argv[1])) as folder:
    (folder / "bucket").write_bytes(b"kv")
    print(folder, flush=True)
    time.sleep(600)
"""


def own(parent: Path) -> tuple["subprocess.Popen[str]", Path]:
    """Starts a process with a folder in `parent`. Returns both."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(parent)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip())


@pytest.mark.process
def test_folders_of_killed_owners_are_removed_and_those_of_living_ones_kept(
    tmp_path: Path,
) -> None:
    owners = [own(tmp_path) for _ in range(2)]
    try:
        (killed, lost), (_, kept) = owners
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (lost / "bucket").exists(), "no process was there to remove it"
        with temporary_folder(tmp_path) as mine:
            assert {mine, kept} == set(tmp_path.iterdir())
            assert (kept / "bucket").exists()
    finally:
        for owner, _ in owners:
            owner.kill()
            owner.communicate()


@pytest.mark.parametrize("removed", range(0, 20, 3))
def test_the_rest_of_a_removal_that_was_killed_is_removed_by_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    unlink, calls = os.unlink, 0

    def killed(*path: Any, **options: Any) -> None:
        nonlocal calls
        if calls == removed:
            raise KeyboardInterrupt
        calls += 1
        unlink(*path, **options)

    with pytest.raises(KeyboardInterrupt), temporary_folder(tmp_path) as folder:
        for number in range(20):
            (folder / f"page{number}").write_bytes(b"kv")
        monkeypatch.setattr(os, "unlink", killed)
    monkeypatch.undo()
    assert folder.exists()
    with temporary_folder(tmp_path) as mine:
        assert set(tmp_path.iterdir()) == {mine}


def test_what_others_have_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    others = [tmp_path / "data", tmp_path / f"{PREFIX}notes", tmp_path / "file"]
    for folder in others[:2]:
        folder.mkdir()
        (folder / "file").touch()
    others[2].touch()
    with temporary_folder(tmp_path):
        assert all(path.exists() for path in others)
    assert set(tmp_path.iterdir()) == set(others)
