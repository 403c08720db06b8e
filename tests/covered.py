"""Prints the share of lines and branches of each folder of the package that the gate runs.

    python -m tests.covered [--workers 2]

The tests run without the rules of the gate, because everything costs more while it is measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from coverage import Coverage

from tests.mutation import MARKERS, ROOT

SETTINGS = "[run]\nbranch = true\nsource = seer_sgl\nparallel = true\npatch = subprocess\n"
COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def measured(workers: int, folder: Path) -> dict[str, Any]:
    """Runs the tests, and returns coverage's report on each file."""
    settings, report = folder / "coveragerc", folder / "report.json"
    settings.write_text(f"{SETTINGS}data_file = {folder / 'data'}\n")
    tests = ["-m", "pytest", "--hypothesis-profile=ci", "-n", str(workers), "-m", MARKERS]
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", *tests]
    subprocess.run(command, cwd=ROOT, check=False)
    found = Coverage(config_file=str(settings))
    found.combine()
    found.json_report(outfile=str(report))
    files: dict[str, Any] = json.loads(report.read_text())["files"]
    return files


def shares(files: dict[str, Any]) -> dict[str, list[int]]:
    """Returns by folder: lines, lines run, branches, branches run. Files beside them are one."""
    folders: dict[str, list[int]] = defaultdict(lambda: [0] * len(COUNTS))
    for path, file in files.items():
        inside = Path(path).parts[1:]
        folder = folders[inside[0] if len(inside) > 1 else "(files)"]
        for place, name in enumerate(COUNTS):
            folder[place] += file["summary"][name]
    return dict(sorted(folders.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seer-sgl-covered-") as folder:
        folders = shares(measured(flags.workers, Path(folder)))
    print(f"{'folder':16}{'lines':>8}{'run':>8}{'branches':>10}{'run':>8}")
    folders["all"] = [sum(counts) for counts in zip(*folders.values(), strict=True)]
    for name, (lines, run, branches, taken) in folders.items():
        share = 100 * taken / branches if branches else 100.0
        print(f"{name:16}{lines:8}{100 * run / lines:7.1f}%{branches:10}{share:7.1f}%")


if __name__ == "__main__":
    main()
