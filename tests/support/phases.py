"""Runs targets of the Makefile, and prints how long each took.

`python -m tests.support.phases TARGET... [--beside TARGET...]` runs the first targets one after the
other. Those after `--beside` run one after the other too, at the same time; what they print appears
when each ends. A target that fails is the last of its sequence, and its status is that of the
program. CPU time is printed too: on a busy machine the wall time says little.
"""

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


class Phases:
    """Sequences of targets that run at the same time."""

    def __init__(self) -> None:
        self.status = 0  # of the first target that failed
        self.cpu_s = 0.0  # of all targets
        self.rows: list[str] = []
        self._running: set[int] = set()  # pids

    def run(self, targets: Sequence[str]) -> None:
        """Runs `make TARGET` for each, up to the first that fails."""
        for target in targets:
            if self._make(target, None):
                break

    def run_beside(self, targets: Sequence[str]) -> None:
        """As `run`; prints what a target printed at its end."""
        for target in targets:
            with tempfile.TemporaryFile() as output:
                status = self._make(target, output)
                output.seek(0)
                sys.stdout.buffer.write(b"\n" + target.encode() + b":\n" + output.read())
                sys.stdout.flush()
            if status:
                break

    def end(self) -> None:
        """Ends the targets that run."""
        for pid in list(self._running):
            os.kill(pid, signal.SIGTERM)

    def _make(self, target: str, output: BinaryIO | None) -> int:
        begun = time.monotonic()
        command = ["make", "--no-print-directory", target]
        make = subprocess.Popen(command, stdout=output, stderr=output)
        self._running.add(make.pid)
        _, code, used = os.wait4(make.pid, 0)
        self._running.discard(make.pid)
        status = make.returncode = os.waitstatus_to_exitcode(code)
        cpu_s = used.ru_utime + used.ru_stime
        self.cpu_s += cpu_s
        self.status = self.status or status
        note = f"exit status {status}" if status else ""
        self.rows.append(row(target, time.monotonic() - begun, cpu_s, note))
        return status


def row(name: str, wall_s: float, cpu_s: float, note: str) -> str:
    """Returns a line of the table."""
    return ROW.format(name, f"{wall_s:.0f} s", f"{cpu_s:.0f} s", note).rstrip()


def run(targets: Sequence[str], beside: Sequence[str]) -> int:
    """Runs two sequences of targets at the same time; returns the exit status."""
    phases, begun = Phases(), time.monotonic()
    other = threading.Thread(target=phases.run_beside, args=(beside,))
    other.start()
    try:
        phases.run(targets)
        other.join()
    finally:
        phases.end()
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    total = row("all", time.monotonic() - begun, phases.cpu_s, load)
    print("", ROW.format("target", "wall", "CPU", ""), *phases.rows, total, sep="\n", flush=True)
    return phases.status


def main(arguments: Sequence[str]) -> int:
    """Runs the program; returns its exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cut = arguments.index(BESIDE) if BESIDE in arguments else len(arguments)
    return run(arguments[:cut], arguments[cut + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
