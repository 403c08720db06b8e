"""The folder of a session's results: its record, what earlier tries left, and the archive.

A part is recorded as cut when it begins, so a session that ends at any moment leaves a record that
offers the part again. The archive is replaced at once, so there is always a complete one.
"""

import contextlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .machine import write_json

RECORD = "session.json"
EARLIER = "earlier"  # the subfolder for results of parts that were cut
LOG_BYTES = 60_000  # of the end of a log, in the archive
LEFT_OUT = (".trace.json.gz", ".npy", ".npz", ".so", ".part")


class Results:
    """The results in the folder `out`, and their archive."""

    def __init__(self, out: Path, archive: Path) -> None:
        self.out = out
        self.archive = archive
        self._packed: dict[Path, tuple[int, int]] = {}

    def record(self) -> dict[str, Any]:
        """Returns the records of the parts that were begun in this folder, by name."""
        path = self.out / RECORD
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return content

    def begin(self, name: str) -> Path:
        """Records that a part begins, and moves away what its earlier tries left. Returns the path
        of its log."""
        done = self.record()
        if name in done:
            self._set_aside(name)
        self.end(name, {"status": None, "cut": True})
        return self.out / f"{name}.log"

    def end(self, name: str, one: dict[str, Any]) -> None:
        """Records how a part ended, and packs."""
        write_json(self.out / RECORD, self.record() | {name: one})
        self.pack()

    def pack(self) -> None:
        """Writes the archive, if files have changed: the ends of logs, and no traces and models."""
        files = dict(self._files())
        if files == self._packed:
            return
        draft = self.archive.with_name(self.archive.name + ".part")
        with tarfile.open(draft, "w:gz") as tar:
            for path in sorted(files):
                with contextlib.suppress(FileNotFoundError):  # a part runs, and removes its files
                    tar.addfile(*_member(path, path.relative_to(self.out.parent)))
        draft.replace(self.archive)
        self._packed = files

    def restore(self, archive: Path) -> bool:
        """Continues with the results of an archive, if this folder has none. Returns whether it
        did. Raises OSError or tarfile.TarError for a file that is no archive."""
        if (self.out / RECORD).exists():
            return False
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                member.name = str(Path(*Path(member.name).parts[1:]))
                tar.extract(member, self.out, filter="data")
        return True

    def _files(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        for path in self.out.rglob("*"):
            if path.is_file() and not path.name.endswith(LEFT_OUT) and path != self.archive:
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    yield path, (status.st_mtime_ns, status.st_size)

    def _set_aside(self, name: str) -> None:
        """Moves the files of a part to earlier/1/, earlier/2/ and so on."""
        number = 1
        while list((self.out / EARLIER / str(number)).glob(f"{name}.*")):
            number += 1
        folder = self.out / EARLIER / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        for path in [self.out / name, *self.out.glob(f"{name}.*")]:
            if path.exists():
                shutil.move(path, folder / path.name)


def _member(path: Path, name: Path) -> tuple[tarfile.TarInfo, io.BytesIO]:
    content = path.read_bytes()
    if path.suffix == ".log":
        content = content[-LOG_BYTES:]
    member = tarfile.TarInfo(str(name))
    member.size, member.mtime = len(content), int(path.stat().st_mtime)
    return member, io.BytesIO(content)
