"""Runs targets of the Makefile, and prints how long each took.

`python -m tests.support.phases TARGET... [--beside TARGET...]` runs the first targets one after the
other. Those after `--beside` run one after the other too, at the same time; what they print appears
when each ends, and of one that fails at the very end. After a failure no target starts, and those
that run are waited for. The exit status is that of the first that failed. CPU time is printed too:
on a busy machine the wall time says little.
"""

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import BinaryIO

ROW = "{:<16} {:>8} {:>8}  {}"
BESIDE = "--beside"
# The parent has set it up: it is not made again under tests that run.
MAKE = ("make", "--no-print-directory", "--assume-old=.venv/.ready")


class Phases:
    """Sequences of targets that run at the same time."""

    def __init__(self) -> None:
        self.status = 0  # of the first target that failed
        self.cpu_s = 0.0  # of all targets
        self.rows: list[str] = []
        self.failed = b""  # what a target printed that failed beside others
        self._lock = threading.Lock()
        self._over = False  # no target starts any more
        self._running: set[int] = set()  # process groups

    def run(self, targets: Sequence[str]) -> None:
        """Runs `make TARGET` for each, until one fails."""
        for target in targets:
            self._make(target, None)

    def run_beside(self, targets: Sequence[str]) -> None:
        """As `run`; prints what a target printed at its end."""
        for target in targets:
            with tempfile.TemporaryFile() as output:
                ok = self._make(target, output)
                output.seek(0)
                printed = b"\n" + target.encode() + b":\n" + output.read()
            if ok is False:
                self.failed = printed
            elif ok:
                sys.stdout.buffer.write(printed)
                sys.stdout.flush()

    def interrupt(self) -> None:
        """Starts no target any more. Interrupts those that run as a terminal does: all processes
        of each, once."""
        with self._lock:
            self._over = True
            for group in self._running:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.killpg(group, signal.SIGINT)

    def _make(self, target: str, output: BinaryIO | None) -> bool | None:
        """Runs a target; returns whether it succeeded, None if it did not start."""
        begun = time.monotonic()
        with self._lock:
            if self._over:
                return None
            make = subprocess.Popen([*MAKE, target], stdout=output, stderr=output, process_group=0)
            self._running.add(make.pid)
        _, code, used = os.wait4(make.pid, 0)
        status = make.returncode = os.waitstatus_to_exitcode(code)
        cpu_s = used.ru_utime + used.ru_stime
        note = f"exit status {status}" if status else ""
        with self._lock:
            self._running.discard(make.pid)
            self._over = self._over or status != 0
            self.status = self.status or status
            self.cpu_s += cpu_s
            self.rows.append(row(target, time.monotonic() - begun, cpu_s, note))
        return status == 0


def row(name: str, wall_s: float, cpu_s: float, note: str) -> str:
    """Returns a line of the table."""
    return ROW.format(name, f"{wall_s:.0f} s", f"{cpu_s:.0f} s", note).rstrip()


def run(targets: Sequence[str], beside: Sequence[str]) -> int:
    """Runs two sequences of targets at the same time; returns the exit status."""
    phases, begun = Phases(), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        try:
            both = [threads.submit(phases.run, targets), threads.submit(phases.run_beside, beside)]
            for sequence in concurrent.futures.as_completed(both):
                sequence.result()
        except BaseException:
            phases.interrupt()
            raise
    sys.stdout.buffer.write(phases.failed)
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    total = row("all", time.monotonic() - begun, phases.cpu_s, load)
    print("", ROW.format("target", "wall", "CPU", ""), *phases.rows, total, sep="\n", flush=True)
    return phases.status


def main(arguments: Sequence[str]) -> int:
    """Runs the program; returns its exit status."""
    cut = arguments.index(BESIDE) if BESIDE in arguments else len(arguments)
    return run(arguments[:cut], arguments[cut + 1 :])


if __name__ == "__main__":
    # A shell starts its background jobs with SIGINT ignored, and so would be the targets.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
