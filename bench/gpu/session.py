"""Runs all measurements of a GPU machine, one after the other, and packs the results.

`python -m bench.gpu.session OUT [--seconds 540] [--parts smoke,reasoner-2] [options of seer-sgl
bench]` runs the parts of parts.py that OUT does not have yet, then those that were cut. Each writes
JSON into OUT and its output to OUT/PART.log. The archive follows while a part runs. At the end of
the time, or when the session is asked to end, the running part gets the chance to write what it
has; the next call continues with the parts after it. `python -m bench.gpu` runs a session in the
background.
"""

import argparse
import ctypes
import fcntl
import functools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import caches
from .machine import gpu_count, has_fa3, require_gpu
from .parts import ROOT, TINY, Machine, Part, Session, configs, inputs, parts, rehearsal
from .results import Results

PROGRAM = "bench.gpu.session"
LEAST_S = 45.0  # a part is not begun with less time left
INPUTS_S = 120.0
GRACE_S = 30.0  # for a part that has to end
PACK_S = 5.0  # between two looks at the results of a running part
LOCK_S = 1.0  # another process may hold the lock for a moment, to see whether a session runs
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def waiting(every: Sequence[Part], done: dict[str, Any], chosen: Sequence[str]) -> list[Part]:
    """Returns the parts to run: the chosen ones, or all that have not been begun, and after them
    those that were cut.

    Raises ValueError for an unknown name.
    """
    names = [part.name for part in every]
    if unknown := set(chosen) - set(names):
        raise ValueError(f"--parts: no part {min(unknown)!r}; parts: {', '.join(names)}")
    if chosen:
        return [part for part in every if part.name in chosen]
    new = [part for part in every if part.name not in done]
    return new + [part for part in every if done.get(part.name, {}).get("cut")]


def run(
    part: Part,
    log: Path,
    seconds: float,
    *,
    meanwhile: Callable[[], bool] = lambda: False,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs a part for at most `seconds`. Returns its record: status, seconds, command.

    meanwhile: called every few seconds; returns whether the part has to end now. environment:
    variables of the part, besides those of this process.
    """
    began = time.monotonic()
    cut = False
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *part.command],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_session,  # noqa: PLW1509 (a session has one thread)
        )
        while True:
            left = began + seconds - time.monotonic()
            try:
                process.wait(max(0.0, min(PACK_S, left)))
                break
            except subprocess.TimeoutExpired:
                if left <= PACK_S or meanwhile():
                    cut = True
                    _end(process)
                    break
    return {
        "status": process.returncode,
        "cut": cut,
        "seconds": round(time.monotonic() - began, 1),
        "command": shlex.join(("python", "-m", *part.command)),
    }


def _end_with_session() -> None:
    """Lets a part end when the session is killed: the next session must find the GPU free."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Asks a part to end, and ends it after a while. Its engines end with it."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def prepare(session: Session, machine: Machine) -> None:
    """Writes the inputs and the configs of the benchmarks. Exits with status 2 if it cannot."""
    session.out.mkdir(parents=True, exist_ok=True)
    for path, text in configs(session, machine).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for part in inputs(session):
        log = session.out / f"{part.name}.log"
        if run(part, log, INPUTS_S)["status"] != 0:
            print(f"{PROGRAM}: no {part.name}: {last_line(log)}", file=sys.stderr)
            raise SystemExit(2)


def arguments() -> argparse.ArgumentParser:
    """Returns the parser of the command line; what it does not know belongs to the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "out", type=Path, help="folder for the results; the next call continues in it"
    )
    parser.add_argument("--parts", default="", help="comma-separated; default: all not yet begun")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="for all parts together"
    )
    parser.add_argument("--archive", type=Path, help="default: OUT.tar.gz")
    parser.add_argument("--shapes", default="", help="options of bench.gpu.shapes")
    parser.add_argument(
        "--rehearse", action="store_true", help="short parts that need no GPU, to try a session out"
    )
    parser.add_argument("--list", action="store_true", help="print the commands, and end")
    return parser


class Measuring:
    """Runs parts one after the other, until the time is over or `stop` is called.

    `run_part`: as `run`; `clock`: seconds.
    """

    def __init__(
        self,
        results: Results,
        *,
        run_part: Callable[..., dict[str, Any]] = run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._results = results
        self._run = run_part
        self._clock = clock
        self._stopped = False

    def stop(self, *_: object) -> None:
        """Lets the running part end within a few seconds, and starts no other."""
        self._stopped = True

    def measure(self, offer: Callable[[], Sequence[Part]], seconds: float) -> bool:
        """Runs parts, each once, as many as the time allows; prints a line for each. Returns
        whether all of them succeeded, or were cut.

        offer: returns the parts that wait, in order. It is called before each part, because what a
        machine can do may grow: kernels that arrive while it measures add parts of their own.
        """
        until, sound = self._clock() + seconds, True
        begun: set[str] = set()
        while part := next((one for one in offer() if one.name not in begun), None):
            begun.add(part.name)
            left = until - self._clock() - GRACE_S
            if left < LEAST_S or self._stopped:
                print(f"{part.name} and the parts after it wait for the next call", flush=True)
                break
            print(f"{part.name} ...", flush=True)
            log = self._results.begin(part.name)
            one = self._run(part, log, left, meanwhile=self._meanwhile)
            self._results.end(part.name, one)
            print(f"{part.name}: {outcome(one, log)}", flush=True)
            sound = sound and not has_failed(one)
        return sound

    def _meanwhile(self) -> bool:
        self._results.pack()
        return self._stopped


def has_failed(one: Mapping[str, Any]) -> bool:
    """Returns whether the record of a part is of one that ended by itself, with an error."""
    return bool(one["status"] != 0 and not one["cut"])


def outcome(one: Mapping[str, Any], log: Path) -> str:
    """Returns the record of a part in words; of one that failed, with the last line of its log."""
    if one["status"] is None:
        return "begun"
    how = "cut" if one["cut"] else "ok"
    if has_failed(one):
        how = f"status {one['status']}: {last_line(log)}"
    return f"{one['seconds']:.0f} s, {how}"


def last_line(log: Path) -> str:
    """Returns the last line of a log that is not empty."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def lock(out: Path) -> int | None:
    """Takes the lock of the folder's session until this process ends. Returns its file descriptor;
    None if another process has it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(out.with_name(f"{out.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _locked(out: Path) -> bool:
    for _ in range(2):
        if lock(out) is not None:
            return True
        time.sleep(LOCK_S)
    return False


def archive_of(out: Path) -> Path:
    """Returns the default path of the archive."""
    return out.with_name(f"{out.name}.tar.gz")


def main() -> None:
    """Exits with status 1 if a part failed, 2 if this is no GPU machine or the folder is in use."""
    parser = arguments()
    options, bench = parser.parse_known_args()
    out = options.out.resolve()
    without_gpu = options.list or options.rehearse
    shapes = [*(TINY if options.rehearse else ()), *shlex.split(options.shapes)]
    session = Session(out, bench, shapes)
    if not without_gpu:
        require_gpu(PROGRAM)
    gpus = 1 if without_gpu else gpu_count()
    chosen = options.parts.split(",") if options.parts else []
    results = Results(out, options.archive or archive_of(out))

    def offer() -> list[Part]:
        done = results.record()
        machine = Machine() if without_gpu else Machine.of(gpus, has_fa3(), done)
        every = rehearsal(session) if options.rehearse else parts(session, machine)
        return waiting(every, done, chosen)

    try:
        todo = offer()
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        print("\n".join(f"{part.name}: {shlex.join(part.command)}" for part in todo))
        return
    if not _locked(out):
        parser.error(f"{out}: another session measures into this folder")
    kept = caches.variables(caches.folder_of(out))
    measuring = Measuring(results, run_part=functools.partial(run, environment=kept))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, measuring.stop)
    prepare(session, Machine(gpus))
    sound = measuring.measure(offer, options.seconds)
    print(f"results: {results.archive}")
    raise SystemExit(0 if sound else 1)


if __name__ == "__main__":
    main()
