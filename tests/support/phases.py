"""Runs targets of the Makefile one after the other, and prints how long each took.

`python -m tests.support.phases TARGET...` ends at the first target that fails, with its status. CPU
time is printed too: on a busy machine the wall time says little.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

ROW = "{:<16} {:>8} {:>8}  {}"


def cpu_s() -> float:
    """Returns the CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(targets: Sequence[str]) -> int:
    """Runs `make TARGET` for each; returns the first exit status that is not 0."""
    rows: list[str] = []
    status, begun, begun_cpu = 0, time.monotonic(), cpu_s()
    for target in targets:
        start, start_cpu = time.monotonic(), cpu_s()
        status = subprocess.run(["make", "--no-print-directory", target], check=False).returncode
        rows.append(_row(target, start, start_cpu, f"exit status {status}" if status else ""))
        if status:
            break
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    table = [ROW.format("target", "wall", "CPU", ""), *rows, _row("all", begun, begun_cpu, load)]
    print("", *table, sep="\n", flush=True)
    return status


def _row(name: str, start: float, start_cpu: float, note: str) -> str:
    wall, cpu = time.monotonic() - start, cpu_s() - start_cpu
    return ROW.format(name, f"{wall:.0f} s", f"{cpu:.0f} s", note).rstrip()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
