"""Folders of journals that cannot be read or written: one line each, and nothing is changed."""

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from seer_sgl.driver.journal.folder import JournalFolder
from seer_sgl.driver.journal.stored import read
from seer_sgl.errors import JournalError
from seer_sgl.rollout.journaled import RolloutJournal
from tests.driver.journal.kept import make_journal

NOBODY = 65534


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Runs the block as a user whom the modes of files concern."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields the folder of a journal that any user can reach and may change."""
    outer = Path(tempfile.mkdtemp())  # other users cannot reach pytest's own
    try:
        path = make_journal(outer / "journal", random.Random(1)).path
        outer.chmod(0o755)
        path.chmod(0o777)
        for file in path.iterdir():
            file.chmod(0o666)
        yield path
    finally:
        shutil.rmtree(outer)


def resume(path: Path) -> None:
    """Opens a journal as a resume does."""
    with JournalFolder(path, create=False) as folder:
        stored = read(folder)
        assert stored is not None
        folder.resume(stored.tail).close()


def test_any_user_can_continue_with_a_journal_that_may_be_changed(folder: Path) -> None:
    with unprivileged():
        resume(folder)


@pytest.mark.parametrize(
    ("target", "mode"),
    [
        ("journal", 0o000),
        ("journal", 0o444),
        ("lock", 0o000),
        (".", 0o000),
    ],
)
def test_a_journal_that_cannot_be_read_or_changed_is_refused_in_one_line(
    folder: Path, target: str, mode: int
) -> None:
    before = (folder / "journal").read_bytes()
    (folder / target).chmod(mode)
    with unprivileged(), pytest.raises(JournalError) as refused:
        resume(folder)
    message = str(refused.value)
    assert message.startswith(f"journal {folder}: ")
    assert "Permission denied" in message
    assert "\n" not in message
    assert (folder / "journal").read_bytes() == before


def test_a_folder_with_other_files_keeps_them(folder: Path) -> None:
    other = folder / "results" / "samples.jsonl"
    other.parent.mkdir()
    other.write_text("{}\n")
    with pytest.raises(JournalError, match="Directory not empty"):
        JournalFolder(folder, create=True).remove()
    assert other.read_text() == "{}\n"
    shutil.rmtree(other.parent)
    JournalFolder(folder, create=True).remove()
    assert not folder.exists()


def test_a_new_journal_in_a_folder_that_may_not_be_changed_is_refused(folder: Path) -> None:
    with JournalFolder(folder, create=False) as opened:
        stored = read(opened)
    assert stored is not None
    (folder / "journal").unlink()
    folder.chmod(0o555)
    with (
        unprivileged(),
        JournalFolder(folder, create=True) as opened,
        pytest.raises(JournalError, match="Permission denied"),
    ):
        opened.begin(stored.header)
    folder.chmod(0o755)
    (folder / "lock").unlink()
    folder.chmod(0o555)
    with unprivileged(), pytest.raises(JournalError, match="Permission denied"):
        RolloutJournal.begin(folder)
