"""Writes the blocks of a journal in a thread, so that the event loop never waits for a disk."""

import contextlib
import io
import logging
import os
import threading
from collections.abc import Sequence

from seer_sgl.files import append_whole
from seer_sgl.timing import DEFAULT, Timing

from .blocks import Tail, make_block

logger = logging.getLogger(__name__)
# Records that wait for the disk. A disk that is further behind has failed.
MOST_WAITING = 256 << 20


class BlockWriter:
    """Appends records to a file that is open for writing, at `tail`.

    After the first error it writes nothing more, and drops what it receives: the file ends with the
    last whole block. `name`: the journal's, in log messages.
    """

    sync = staticmethod(os.fdatasync)

    def __init__(self, file: io.FileIO, tail: Tail, name: str, timing: Timing = DEFAULT) -> None:
        self._file = file
        self._tail = tail
        self._name = name
        self._gather_s = timing.journal_gather_s
        self._close_s = timing.journal_close_s
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._due = threading.Event()  # records wait, or the writer is being closed
        self._closing = threading.Event()
        self.error: str | None = None  # the reason why records are missing
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def append(self, record: bytes) -> None:
        """Takes a record; it is on disk soon. Never blocks and never raises."""
        with self._lock:
            if self.error is None and self._waiting_bytes > MOST_WAITING:
                self._fail(f"the disk is {self._waiting_bytes >> 20} MiB behind")
            if self.error is not None:
                return
            self._waiting.append(record)
            self._waiting_bytes += len(record)
        if not self._due.is_set():
            self._due.set()

    def close(self) -> bool:
        """Writes and syncs what waits, and closes the file; returns whether it is closed.

        Blocks until then, or until the disk has not done it within `Timing.journal_close_s`.
        """
        with self._lock:
            self._closing.set()
            self._due.set()
        self._thread.join(self._close_s)
        if not self._thread.is_alive():
            return True
        with self._lock:
            self._close_s = 0.0
            if self.error is None:
                self._fail("the disk does not answer")
        return False

    def _work(self) -> None:
        while True:
            self._due.wait()
            self._closing.wait(self._gather_s)
            with self._lock:
                records, self._waiting, self._waiting_bytes = self._waiting, [], 0
                closing = self._closing.is_set()
                if not closing:
                    self._due.clear()
            if records and self.error is None:
                self._write(records)
            if closing:
                with contextlib.suppress(OSError):  # everything is synced
                    self._file.close()
                return

    def _write(self, records: Sequence[bytes]) -> None:
        try:
            block, tail = make_block(records, self._tail)
            append_whole(self._file, block)
            self.sync(self._file.fileno())
        except Exception as error:  # of any other kind, a MemoryError say, this thread would die
            with self._lock:
                self._fail(getattr(error, "strerror", None) or str(error) or type(error).__name__)
            with contextlib.suppress(OSError):  # a reader cuts a torn block too
                self._file.truncate(self._tail.position)
            return
        self._tail = tail

    def _fail(self, why: str) -> None:
        self.error = why
        self._waiting, self._waiting_bytes = [], 0
        logger.error("%s: %s; the rollout continues without its journal", self._name, why)
