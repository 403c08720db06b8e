"""`seer-sgl bench`: every arm on the same work, a report that says what each technique brings."""

import asyncio
import json
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import psutil
from rich.console import Console

from seer_sgl.errors import ConfigError
from seer_sgl.rollout.samples import explained
from seer_sgl.sim.config import EngineConfig

from .config import BenchConfig
from .fleets import runnable
from .measure import Rolled, Row
from .plots import draw_arms, draw_lanes, draw_soak
from .prediction import measure_constants, predict
from .runner import Runner, running
from .soak import SoakRow, soak
from .summary import by_seed, summarize
from .tables import arms_table, markdown

PACKAGES = (
    "seer-sgl",
    "sglang",
    "sglang-router",
    "torch",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-non-cuda",
    "numpy",
)


class Findings:
    """What is known so far: nothing that was measured is lost when the rest fails."""

    def __init__(self, config: BenchConfig, out: Path) -> None:
        self._config = config
        self._out = out
        self.rows: list[Row] = []
        self.rolled: dict[tuple[str, int], Rolled] = {}  # the latest of an arm and seed
        self.soak: list[SoakRow] = []
        self.engine: EngineConfig | None = None  # step times of the servers

    def add(self, rolled: Rolled) -> None:
        """One more rollout: kept, and written down."""
        self.rows.append(rolled.row)
        self.rolled[rolled.row.arm, rolled.row.seed] = rolled
        with (self._out / "rounds.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(rolled.row) + b"\n")

    def report(self) -> dict[str, Any]:
        """The whole of it."""
        return {
            "arms": summarize(self.rows),
            "seeds": by_seed(self.rows),
            "predicted": predict(self._config, self.engine, self.rolled),
            "soak": msgspec.to_builtins(self.soak),
            "environment": environment(),
            "config": msgspec.to_builtins(self._config),
            "rounds": msgspec.to_builtins(self.rows),
        }

    def write(self) -> dict[str, Any]:
        """report.json, report.md and the plots."""
        report = self.report()
        with explained(self._out / "report.json"):
            (self._out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
            (self._out / "report.md").write_text(markdown(report))
        draw_arms(report, self._out / "arms.png")
        draw_lanes(self.rolled, self._out / "lanes.png")
        if self.soak:
            draw_soak(self.soak, self._out / "soak.png")
        return report


async def bench(config: BenchConfig, out: Path, console: Console) -> None:
    """Run the benchmark into `out`. However it ends, what was measured is reported.

    Raises SeerError, or CancelledError when interrupted.
    """

    def announce(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    arms = runnable(config, announce)
    _make_folder(out)
    runner = Runner(config, arms, out, announce)
    findings = Findings(config, out)
    total = config.bench.rounds * len(arms)
    try:
        async with running(runner):
            findings.engine = await measure_constants(runner, arms, announce)
            async for rolled in runner.rounds():
                findings.add(rolled)
                announce(f"{len(findings.rows)}/{total} {_line(rolled.row)}")
            async for row in soak(runner, config.bench.soak):
                findings.soak.append(row)
                announce(f"soak {row.number + 1}/{config.bench.soak}: {row.wall_s:.1f} s")
    finally:
        if findings.rows:
            # The simulator has an event loop of its own.
            report = await asyncio.to_thread(findings.write)
            console.print(arms_table(report))
            announce(f"wrote report.json, report.md, arms.png and lanes.png into {out}")


def _line(row: Row) -> str:
    return (
        f"seed {row.seed} {row.arm}: {row.wall_s:.1f} s, {row.throughput_tok_s:.0f} tok/s, "
        f"tail {row.tail_s:.1f} s, {row.retractions} retractions, "
        f"{row.identical_share:.1%} identical"
    )


def environment() -> dict[str, Any]:
    """Where and with what this was measured."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "gpus": _gpus(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


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
        raise ConfigError(f"--out {out}: there is a benchmark already; use another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
