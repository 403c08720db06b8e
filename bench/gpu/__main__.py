"""Runs a session in the background, for machines where a command may take minutes only.

`python -m bench.gpu OUT [--watch 540] [--copy DIR] [--restore DIR] [options of bench.gpu.session]`
starts `bench.gpu.session OUT` as a process that outlives this one, or finds it running. It prints
what the session prints, copies the archive of the results to DIR whenever it grows, and ends with
the session or after `--watch` seconds. Each later call watches again. If this program is killed,
the session runs on, and what it had measured is in DIR. What it has compiled follows at the end of
a call. `--restore` continues on another machine from what `--copy` has left.

Exit status: 0 while the session runs; afterwards 1 if a part has failed, and 2 if it could not
start.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from . import caches, session
from .parts import ROOT
from .results import Results

PROGRAM = "python -m bench.gpu"
POLL_S = 1.0
WATCH_S = 540.0


class Place(NamedTuple):
    """Where a session runs: the folder of its results, and the file with what it prints."""

    out: Path
    printed: Path

    @classmethod
    def of(cls, out: Path) -> "Place":
        """Returns the place of the session with its results in `out`."""
        return cls(out, out.with_name(f"{out.name}.session.log"))

    def running(self) -> bool:
        """Returns whether a session measures into this folder."""
        held = session.lock(self.out)
        if held is not None:
            os.close(held)
        return held is None


def start(place: Place, options: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Starts the session as a process that no end of this program's terminal or group reaches."""
    command = [sys.executable, "-m", session.PROGRAM, str(place.out), *options]
    place.out.parent.mkdir(parents=True, exist_ok=True)
    with place.printed.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Watch:
    """Prints what a session prints, and copies its archive into the folder `copy`."""

    def __init__(self, place: Place, archive: Path, copy: Path | None) -> None:
        self._place = place
        self._archive = archive
        self._copy = copy
        self._copied = 0
        self._read = place.printed.stat().st_size if place.printed.exists() else 0

    def look(self) -> None:
        """Prints the new lines, and copies the archive if it has changed."""
        if self._place.printed.exists():
            with self._place.printed.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            self._read += len(new)
            sys.stdout.write(new.decode(errors="replace"))
            sys.stdout.flush()
        if self._copy is not None and self._archive.exists():
            changed = self._archive.stat().st_mtime_ns
            if changed != self._copied:
                replace_copy(self._archive, self._copy)
                self._copied = changed


def restore(results: Results, compiled: Path, copies: Path) -> None:
    """Continues with results and caches from another machine, where there are none yet. Raises
    OSError, EOFError or tarfile.TarError if they cannot be read."""
    caches.unpack(copies, compiled)
    results.restore(copies / results.archive.name)


def replace_copy(file: Path, folder: Path) -> None:
    """Copies a file into a folder, where there is at any moment a whole one."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{file.name}.part"
    shutil.copyfile(file, draft)
    draft.replace(folder / file.name)


def state(results: Results) -> list[str]:
    """Returns a line for each part that was begun."""
    return [
        f"{name}: {session.outcome(one, results.out / f'{name}.log')}"
        for name, one in results.record().items()
    ]


def arguments() -> argparse.ArgumentParser:
    """Returns the parser of the command line; what it does not know is for the session."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=(__doc__ or "").splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("out", type=Path, help="folder for the results; later calls continue in it")
    parser.add_argument("--watch", type=float, default=WATCH_S, help="seconds until this ends")
    parser.add_argument("--copy", type=Path, help="folder that gets the archive as it grows")
    parser.add_argument(
        "--restore", type=Path, help="folder that `--copy` has filled on another machine"
    )
    return parser


def main() -> None:
    """Starts or continues, and watches."""
    parser = arguments()
    options, rest = parser.parse_known_args()
    place = Place.of(options.out.resolve())
    results = Results(place.out, session.archive_of(place.out))
    compiled = caches.folder_of(place.out)
    if options.restore is not None:
        try:
            restore(results, compiled, options.restore)
        except (OSError, EOFError, tarfile.TarError) as error:
            parser.error(f"--restore {options.restore}: {error}")
    watch = Watch(place, results.archive, options.copy)
    until = time.monotonic() + options.watch
    process = None if place.running() else start(place, rest)
    print("a session runs already" if process is None else "started a session", flush=True)
    ended = False
    while not ended and time.monotonic() < until:
        ended = not place.running() if process is None else process.poll() is not None
        watch.look()
        time.sleep(0 if ended else POLL_S)
    if options.copy is not None and compiled.exists():
        left_out = caches.pack(compiled, options.copy)
        print(f"packed what was compiled, without {left_out} files", flush=True)
    if not ended:
        print("\n".join(["the session runs on; so far:", *state(results)]))
        return
    raise SystemExit(process.returncode if process else _status(results))


def _status(results: Results) -> int:
    """Returns the exit status of a session that an earlier call had started."""
    return int(any(map(session.has_failed, results.record().values())))


if __name__ == "__main__":
    main()
