"""`seer-sgl bench`: runs every arm on the same work and reports the gain of each technique."""

import asyncio
import contextlib
import io
import json
import logging
import platform
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import psutil
from rich.console import Console

from seer_sgl.config import with_values
from seer_sgl.config.masking import masked
from seer_sgl.errors import ConfigError, RolloutError
from seer_sgl.files import append_whole, explained
from seer_sgl.kvpool.backend import resolved
from seer_sgl.kvpool.packages import BUILT_FOR
from seer_sgl.report.style import can_draw
from seer_sgl.sim.config import EngineConfig

from .arms import EVERY, SEER
from .config import BenchConfig
from .fleets import runnable
from .measure import Measurement, Row
from .pair import typical_pair
from .plots import draw_arms, draw_pair, draw_soak
from .prediction import measure_constants, predict
from .runner import ArmFailure, Runner
from .soak import SoakRow, drift, soak
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
    """The results so far. It keeps all measurements if a later part of the benchmark fails."""

    def __init__(self, config: BenchConfig, out: Path, failures: Sequence[ArmFailure]) -> None:
        """`failures`: the runner's list, which may still grow."""
        self._config = config
        self._out = out
        self._failures = failures
        self.rolled: list[Measurement] = []
        self.commit = _commit()  # read at the start: the checkout may change during the run
        self.soak: list[SoakRow] = []
        self.engine: EngineConfig | None = None  # step times of the servers

    @property
    def rows(self) -> list[Row]:
        """The figures of every rollout."""
        return [measurement.row for measurement in self.rolled]

    def add(self, measurement: Measurement) -> None:
        """Adds a rollout and appends its figures to rounds.jsonl."""
        self.rolled.append(measurement)
        path = self._out / "rounds.jsonl"
        with explained(path), io.FileIO(path, "a") as file:
            append_whole(file, msgspec.json.encode(measurement.row) + b"\n")

    def write(self) -> dict[str, Any]:
        """Writes report.json, report.md and the plots. Returns the report.

        The measurements are written first, so that they are kept if the simulation fails.
        """
        report = {
            "arms": summarize(self.rows),
            "seeds": by_seed(self.rows),
            "doubts": doubts(self.rows, imposed=self._config.bench.workload is not None),
            "failures": msgspec.to_builtins(self._failures),
            "predicted": {},
            "soak": msgspec.to_builtins(self.soak),
            "soak_drift": drift(self.soak),
            "environment": environment(self.commit),
            "config": masked(msgspec.to_builtins(self._config)),
            "rounds": msgspec.to_builtins(self.rows),
        }
        pair = typical_pair(self.rolled)
        self._write(report, lanes=pair is not None)
        latest = {
            (measurement.row.arm, measurement.row.seed): measurement for measurement in self.rolled
        }
        report["predicted"] = predict(self._config, self.engine, latest)
        self._write(report, lanes=pair is not None)
        if pair is not None:
            with explained(self._out / "lanes.json"):
                (self._out / "lanes.json").write_bytes(msgspec.json.encode(pair) + b"\n")
        if can_draw():
            draw_arms(self.rows, self._out / "arms")
            if pair is not None:
                draw_pair(pair, self._out / "lanes")
            if self.soak:
                draw_soak(self.soak, self._out / "soak")
        return report

    def _write(self, report: dict[str, Any], *, lanes: bool) -> None:
        with explained(self._out / "report.json"):
            (self._out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
            (self._out / "report.md").write_text(markdown(report, lanes=lanes))


async def bench(config: BenchConfig, out: Path, console: Console) -> None:
    """Runs the benchmark and writes its results into `out`, also after a failure.

    Raises SeerError, also if an arm failed, and CancelledError if interrupted.
    """
    config = with_values(config, {"kv_pool": resolved(config.kv_pool)})
    arms = runnable(config)
    _make_folder(out)
    runner = Runner(config, arms, out)
    results = BenchReport(config, out, runner.failures)
    total = config.bench.rounds * len(arms)
    # The soak reloads weights, so it runs only on servers that the benchmark started.
    rollouts = config.bench.soak if EVERY[SEER] in arms and runner.own_servers else 0
    try:
        async with contextlib.aclosing(runner):
            results.engine = await measure_constants(runner, arms)
            async for measurement in runner.rounds():
                results.add(measurement)
                logger.info("%d/%d %s", len(results.rows), total, _line(measurement.row))
            if SEER in {failure.arm for failure in runner.failures}:
                rollouts = 0
            async for row in soak(runner, rollouts):
                results.soak.append(row)
                logger.info("soak %d/%d: %.1f s", row.number + 1, rollouts, row.wall_s)
    finally:
        if results.rows:
            # The simulator has an event loop of its own.
            report = await asyncio.to_thread(results.write)
            console.print(arms_table(report))
            for doubt in report["doubts"]:
                logger.warning("%s", doubt)
            logger.info("wrote the report and its pictures into %s", out)
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
        "packages": {name: _version(name) for name in PACKAGES},
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


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _make_folder(out: Path) -> None:
    if (out / "rounds.jsonl").exists():
        raise ConfigError(f"--out {out}: the folder already has a benchmark; use another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error
