"""Runs all measurements of a GPU machine, one after the other, and packs the results.

`python -m bench.gpu.session OUT [--seconds 540] [--parts smoke,reasoner-2] [options of seer-sgl
bench]` runs the parts of parts.py that OUT does not have yet, then those that were cut. Each writes
JSON into OUT, its output goes to OUT/PART.log, and after each the archive is complete. At the end
of the time the running part gets the chance to write what it has; the next call continues with the
parts after it.
"""

import argparse
import io
import json
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .machine import gpu_count, has_fa3, require_gpu, write_json
from .parts import ROOT, Machine, Part, Session, configs, inputs, parts

PROGRAM = "bench.gpu.session"
LEAST_S = 45.0  # a part is not begun with less time left
INPUTS_S = 120.0
GRACE_S = 30.0  # for a part that has to end
LOG_BYTES = 60_000  # of the end of a log, in the archive
LEFT_OUT = (".trace.json.gz", ".npy", ".so")


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


def run(part: Part, log: Path, seconds: float) -> dict[str, Any]:
    """Runs a part for at most `seconds`. Returns its record: status, seconds, command."""
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *part.command],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        cut = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            cut = True
            _end(process)
    return {
        "status": process.returncode,
        "cut": cut,
        "seconds": round(time.monotonic() - began, 1),
        "command": shlex.join(("python", "-m", *part.command)),
    }


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Asks a part to end, and ends it after a while. Its engines end with it."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def pack(out: Path, archive: Path) -> None:
    """Writes the results into an archive: the ends of logs, and no traces and models."""
    draft = archive.with_name(archive.name + ".part")
    with tarfile.open(draft, "w:gz") as tar:
        for path in sorted(out.rglob("*")):
            if path.is_file() and not path.name.endswith(LEFT_OUT) and path != draft:
                tar.addfile(*_member(path, path.relative_to(out.parent)))
    draft.replace(archive)


def _member(path: Path, name: Path) -> tuple[tarfile.TarInfo, io.BytesIO]:
    content = path.read_bytes()
    if path.suffix == ".log":
        content = content[-LOG_BYTES:]
    member = tarfile.TarInfo(str(name))
    member.size, member.mtime = len(content), int(path.stat().st_mtime)
    return member, io.BytesIO(content)


def record(out: Path) -> dict[str, Any]:
    """Returns the records of the parts that were begun in this folder."""
    path = out / "session.json"
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def prepare(session: Session, machine: Machine) -> None:
    """Writes the inputs and the configs of the benchmarks. Exits with status 2 if it cannot."""
    session.out.mkdir(parents=True, exist_ok=True)
    for path, text in configs(session, machine).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    log = session.out / "inputs.log"
    if run(inputs(session), log, INPUTS_S)["status"] != 0:
        print(f"{PROGRAM}: no inputs, see {log}", file=sys.stderr)
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
    parser.add_argument("--list", action="store_true", help="print the commands, and end")
    return parser


def measure(todo: Sequence[Part], out: Path, archive: Path, seconds: float) -> bool:
    """Runs the parts, as many as the time allows; prints a line for each. Returns whether all of
    them succeeded, or were cut."""
    until, done, sound = time.monotonic() + seconds, record(out), True
    for part in todo:
        left = until - time.monotonic() - GRACE_S
        if left < LEAST_S:
            print(f"{part.name} and the parts after it wait for the next call", flush=True)
            break
        log = out / f"{part.name}.log"
        done[part.name] = one = run(part, log, left)
        failed = one["status"] != 0 and not one["cut"]
        how = (
            f"status {one['status']}: {last_line(log)}" if failed else "cut" if one["cut"] else "ok"
        )
        print(f"{part.name}: {one['seconds']:.0f} s, {how}", flush=True)
        sound = sound and not failed
        write_json(out / "session.json", done)
        pack(out, archive)
    return sound


def last_line(log: Path) -> str:
    """Returns the last line of a log that is not empty."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def main() -> None:
    """Exits with status 1 if a part failed, 2 if this is no GPU machine."""
    parser = arguments()
    options, bench = parser.parse_known_args()
    out = options.out.resolve()
    session = Session(out, bench, shlex.split(options.shapes))
    if not options.list:
        require_gpu(PROGRAM)
    machine = Machine() if options.list else Machine(gpu_count(), has_fa3())
    chosen = options.parts.split(",") if options.parts else []
    try:
        todo = waiting(parts(session, machine), record(out), chosen)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        print("\n".join(f"{part.name}: {shlex.join(part.command)}" for part in todo))
        return
    archive = options.archive or out.with_name(f"{out.name}.tar.gz")
    prepare(session, machine)
    sound = measure(todo, out, archive, options.seconds)
    print(f"results: {archive}")
    raise SystemExit(0 if sound else 1)


if __name__ == "__main__":
    main()
