"""Runs a tier of the tests again and again while other processes keep the cores busy.

    python -m tests.flaky --runs 10 --load 8 [--tier gate|process|smoke|engines] [PATH...]

A test that passes on a quiet machine may lose a race on a busy one. The table has one line per run:
its outcome, how long it took and which tests failed; the reports are in out/flaky/. The exit status
is 1 if anything failed. The load ends with this process, even if that is killed.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.tiers import GATE, TIERS

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "flaky"
NICENESS = 10  # a process of the load gets a tenth of the time that one of the tests gets
# Linux may share the cores between sessions first, each of which has a niceness of its own. It
# refuses a second one within a tenth of a second.
BUSY = f"""
import os, pathlib, sys, time
os.nice({NICENESS})

def session_niced():
    try:
        pathlib.Path("/proc/self/autogroup").write_text("{NICENESS}")
    except BlockingIOError:
        return False
    except OSError:  # it does not
        pass
    return True

while not session_niced():
    time.sleep(0.1)
while os.getppid() == int(sys.argv[1]):
    sum(range(1_000_000))
"""
ROW = "{:>4}  {:>6}  {:>6}  {:>8}  {:>5}  {}"


class Run(NamedTuple):
    """One run of the tests. `failed`: names of the tests that failed or could not be set up."""

    passed: int
    failed: tuple[str, ...]
    wall_s: float
    status: int  # of pytest

    @property
    def ok(self) -> bool:
        return self.status == 0 and not self.failed


@contextmanager
def busy(processes: int) -> Iterator[list[int]]:
    """Keeps the cores busy with so many niced processes; yields their ids."""
    command = [sys.executable, "-c", BUSY, str(os.getpid())]
    load: list[subprocess.Popen[bytes]] = []
    try:
        load += (subprocess.Popen(command, start_new_session=True) for _ in range(processes))
        yield [process.pid for process in load]
    finally:
        for process in load:
            process.kill()
            process.wait()


def outcome(report: Path) -> tuple[int, tuple[str, ...]]:
    """Returns how many tests passed, and the names of the others, by pytest's JUnit report."""
    passed, failed = 0, []
    for test in ET.parse(report).iter("testcase"):
        if test.find("failure") is not None or test.find("error") is not None:
            failed.append(f"{test.get('classname')}::{test.get('name')}")
        elif test.find("skipped") is None:
            passed += 1
    return passed, tuple(dict.fromkeys(failed))  # a test may fail and end with an error too


def run(tier: str, paths: Sequence[str], name: str) -> Run:
    """Runs the tests once; the report and the output are in OUT, under `name`."""
    report = OUT / f"{name}.xml"
    report.unlink(missing_ok=True)
    options = ("-p", "tests.support.tiers", "--tier", tier, f"--junitxml={report}")
    begun = time.monotonic()
    with (
        (OUT / f"{name}.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "pytest", "--hypothesis-profile=ci", *options, *paths],
            cwd=ROOT,
            start_new_session=True,  # one interrupt, and it is ours
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            status = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)  # pytest ends the engines
            raise
    wall_s = time.monotonic() - begun
    passed, failed = outcome(report) if report.exists() else (0, ())
    return Run(passed, failed, wall_s, status)


def main() -> int:
    """Prints the table. Returns 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--load", type=int, default=8, help="busy processes beside the tests")
    parser.add_argument("--tier", choices=[GATE, *TIERS], default=GATE)
    parser.add_argument("paths", nargs="*", help="run the tests of these files only")
    flags = parser.parse_args()
    for kind in (signal.SIGTERM, signal.SIGINT):  # a background job ignores the second
        signal.signal(kind, signal.default_int_handler)
    OUT.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    with busy(flags.load):
        print(ROW.format("run", "passed", "failed", "wall", "load", "failing tests"), flush=True)
        for number in range(1, flags.runs + 1):
            runs.append(found := run(flags.tier, flags.paths, f"{flags.tier}-{number}"))
            why = "" if found.ok or found.failed else f"exit status {found.status}"
            row = ROW.format(
                *(number, found.passed, len(found.failed), f"{found.wall_s:.0f} s"),
                *(f"{os.getloadavg()[0]:.1f}", " ".join(found.failed) or why),
            )
            print(row.rstrip(), flush=True)
    good = sum(each.ok for each in runs)
    print(f"{good} of {len(runs)} runs of {flags.tier} passed, with a load of {flags.load}")
    return int(good < len(runs))


if __name__ == "__main__":
    sys.exit(main())
