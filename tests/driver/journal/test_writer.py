"""The thread that writes the blocks."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from seer_sgl.driver.journal import writer
from seer_sgl.driver.journal.folder import JournalFolder
from seer_sgl.driver.journal.records import Resumed, encode
from seer_sgl.driver.journal.stored import read, records
from seer_sgl.timing import DEFAULT, Timing
from tests.driver.journal.kept import header_of, make_groups
from tests.support.disks import BusyDisk
from tests.support.waiting import block_until

CYCLES = 60


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JournalFolder]:
    with JournalFolder(tmp_path, create=True) as opened:
        yield opened


def begun(folder: JournalFolder, timing: Timing = DEFAULT) -> writer.BlockWriter:
    return writer.BlockWriter(*folder.begin(header_of(make_groups())), "journal", timing)


def resumes(folder: JournalFolder) -> list[int]:
    stored = read(folder)
    assert stored is not None
    return [record.run for record in records(folder, stored) if isinstance(record, Resumed)]


def append(to: writer.BlockWriter, runs: range) -> None:
    for run in runs:
        to.append(encode(Resumed(run=run, at=0.0)))


class WatchedLock:
    """A lock with a list of the threads that wait for it."""

    def __init__(self) -> None:
        self.waiting: list[None] = []
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.waiting.append(None)
        self._lock.acquire()
        self.waiting.pop()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_writer_that_is_closed_just_before_it_drains_ends(folder: JournalFolder) -> None:
    open_writer = begun(folder, Timing(journal_gather_s=0.0))
    lock = open_writer._lock = WatchedLock()  # type: ignore[assignment]
    closer = threading.Thread(target=open_writer.close, daemon=True)
    append(open_writer, range(1))
    with lock:
        append_unlocked = open_writer._waiting.append
        append_unlocked(encode(Resumed(run=1, at=0.0)))
        open_writer._due.set()
        block_until(lambda: len(lock.waiting) == 1)
        closer.start()
        block_until(lambda: len(lock.waiting) == 2)
    closer.join(30.0)
    assert not closer.is_alive()
    assert resumes(folder) == [0, 1]


def test_a_writer_ends_with_any_number_of_records(folder: JournalFolder) -> None:
    for count in itertools.islice(itertools.cycle([0, 1, 3]), CYCLES):
        open_writer = begun(folder, Timing(journal_gather_s=0.0))
        append(open_writer, range(count))
        open_writer.close()
        assert resumes(folder) == list(range(count))


def test_records_stay_in_order_and_gather_in_blocks(
    folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BusyDisk(monkeypatch)
    open_writer = begun(folder)
    append(open_writer, range(1))
    disk.syncing.wait()
    append(open_writer, range(1, 50))  # while the disk is busy
    disk.proceed.set()
    open_writer.close()
    assert resumes(folder) == list(range(50))
    stored = read(folder)
    assert stored is not None
    assert len(stored.blocks) == 3, "the header, the first record, and all others"


def test_a_disk_that_is_far_behind_ends_the_journal_and_not_the_memory(
    folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING", 100)
    open_writer = begun(folder, Timing(journal_gather_s=60.0))
    append(open_writer, range(100))
    assert open_writer.error == "the disk is 0 MiB behind"
    open_writer.close()
    assert resumes(folder) == []


def test_a_disk_that_hangs_does_not_hold_up_the_end(
    folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BusyDisk(monkeypatch)
    impatient = Timing(journal_gather_s=0.0, journal_close_s=0.0)
    open_writer = begun(folder, impatient)
    append(open_writer, range(1))
    disk.syncing.wait()
    append(open_writer, range(1, 3))
    assert not open_writer.close()
    assert open_writer.error == "the disk does not answer"
    disk.proceed.set()
    block_until(open_writer.close)
    assert resumes(folder) == [0], "what had begun is written, and nothing more"


def test_an_error_of_any_kind_ends_the_journal_and_is_named(
    folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise MemoryError

    open_writer = begun(folder)
    monkeypatch.setattr(writer.BlockWriter, "sync", staticmethod(full))
    append(open_writer, range(3))
    open_writer.close()
    assert open_writer.error == "MemoryError"
    assert resumes(folder) == []
