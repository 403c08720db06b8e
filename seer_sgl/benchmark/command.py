"""`seer-sgl bench`: runs every arm on the same work and reports the gain of each technique."""

import asyncio
import contextlib
import io
import logging
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
from rich.console import Console

from seer_sgl.config.masking import masked
from seer_sgl.errors import RolloutError
from seer_sgl.files import append_whole, explained, make_out_folder, write_json, write_whole
from seer_sgl.kvpool.packages import BUILT_FOR, version
from seer_sgl.report.style import can_draw

from .measure import Measurement, Row
from .plots import draw_arms
from .runner import Runner
from .summary import by_seed, doubts, summarize
from .tables import arms_table, markdown

logger = logging.getLogger(__name__)
PACKAGES = (
    "seer-sgl",
    "sglang",
    "sglang-router",
    "torch",
    *BUILT_FOR,  # Mooncake's
    "numpy",
)


class BenchReport:
    """The results so far."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.rows: list[Row] = []
        self.commit = _commit()  # read at the start: the checkout may change during the run

    def add(self, measurement: Measurement) -> None:
        """Adds a rollout; appends its figures to rounds.jsonl, its report to reports.jsonl."""
        self.rows.append(measurement.row)
        contents = {"rounds.jsonl": measurement.row, "reports.jsonl": measurement.report}
        for name, content in contents.items():
            path = self._runner.out / name
            with explained(path), io.FileIO(path, "a") as file:
                append_whole(file, msgspec.json.encode(content) + b"\n")

    def write(self) -> dict[str, Any]:
        """Writes report.json, report.md and the plots. Returns the report."""
        config, arms, out = self._runner.config, self._runner.arms, self._runner.out
        report = {
            "arms": summarize(self.rows, arms),
            "seeds": by_seed(self.rows, arms),
            "doubts": doubts(self.rows, arms, imposed=config.bench.workload is not None),
            "failures": msgspec.to_builtins(self._runner.failures),
            "environment": environment(self.commit),
            "config": masked(msgspec.to_builtins(config)),
            "rounds": msgspec.to_builtins(self.rows),
        }
        write_json(out / "report.json", report)
        with explained(out / "report.md"):
            write_whole(out / "report.md", markdown(report).encode())
        if can_draw():
            draw_arms(self.rows, arms, out / "arms")
        return report


async def bench(runner: Runner, console: Console) -> None:
    """Runs the benchmark and writes its results into the runner's folder, also after a failure.

    Raises SeerError, also if an arm failed, and CancelledError if interrupted.
    """
    make_out_folder(runner.out)
    results = BenchReport(runner)
    total = runner.config.bench.rounds * len(runner.arms)
    try:
        async with contextlib.aclosing(runner):
            async for measurement in runner.rounds():
                results.add(measurement)
                logger.info("%d/%d %s", len(results.rows), total, _line(measurement.row))
    finally:
        if results.rows:
            report = await asyncio.to_thread(results.write)
            console.print(arms_table(report))
            for doubt in report["doubts"]:
                logger.warning("%s", doubt)
            logger.info("wrote the report and its pictures into %s", runner.out)
    if runner.failures:
        failed = ", ".join(failure.arm for failure in runner.failures)
        raise RolloutError(f"arms failed: {failed}")


def _line(row: Row) -> str:
    return (
        f"seed {row.seed} {row.arm}: {row.wall_s:.1f} s, {row.throughput_tok_s:.0f} tok/s, "
        f"tail {row.tail_s:.1f} s, {row.retractions} retractions, "
        f"{row.identical_share:.1%} identical"
    )


def environment(commit: str | None) -> dict[str, Any]:
    """Returns the date, machine, package versions and commit of the measurement."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "commit": commit,
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "gpus": _gpus(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def _commit() -> str | None:
    """Returns the commit of the running checkout; None for an installed package."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gpus() -> list[str]:
    try:
        import torch
    except ImportError:
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
