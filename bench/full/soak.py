"""Consecutive rollouts with a weight update after each, to detect drift."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from statistics import linear_regression

import msgspec
import psutil

from seer_sgl.benchmark.arms import EVERY, SEER
from seer_sgl.benchmark.process_tree import process_tree, query_or
from seer_sgl.benchmark.runner import Runner
from seer_sgl.engine.client import LOAD_TIMEOUT_S, HttpEngine
from seer_sgl.errors import EngineUnavailable
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.style import INK, OURS, PAPER, PLAIN, headline, save, styled_figure

MB = 1 << 20
WARM_UP = 2  # rollouts in which allocators and caches still fill
DRIFTING = ("wall_s", "driver_mb", "engines_mb", "others_mb", "kv_hit_share")


class SoakRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of the soak.

    Memory is the sum of resident sets in MB, so shared memory counts in each process: `driver_mb`
    of this process, `engines_mb` of the SGLang servers with their children, `others_mb` of all
    others (Mooncake's, a router).
    """

    number: int
    wall_s: float
    throughput_tok_s: float
    retractions: int
    migrations: int
    fetches: int
    recomputed_tokens: int
    storage_tokens: int  # input tokens read from the pool
    kv_hit_share: float | None  # share of continuations' input tokens that were not recomputed
    accept_length: float | None
    identical_share: float
    driver_mb: float
    engines_mb: float
    others_mb: float


async def soak(runner: Runner, rollouts: int) -> AsyncIterator[SoakRow]:
    """Runs arm `seer` with the first seed `rollouts` times. The new weights equal the old ones, so
    the samples stay equal; engines and pool treat them as different weights."""
    arm, seed = EVERY[SEER], runner.config.bench.seeds[0]
    for number in range(rollouts):
        measurement = await runner.once(arm, number, seed)
        row = measurement.row
        now = process_tree()
        yield SoakRow(
            number=number,
            wall_s=row.wall_s,
            throughput_tok_s=row.throughput_tok_s,
            retractions=row.retractions,
            migrations=row.migrations,
            fetches=row.fetches,
            recomputed_tokens=row.recomputed_tokens,
            storage_tokens=measurement.record.totals.storage,
            kv_hit_share=kv_hit_share(measurement.record),
            accept_length=row.accept_length,
            identical_share=row.identical_share,
            driver_mb=_mb([psutil.Process()]),
            engines_mb=_mb(process for server in now.servers for process in server.processes),
            others_mb=_mb(now.others),
        )
        for engine in (await runner.fleets.of(arm)).engines:
            await reload_weights(engine, f"soak-{number + 1}")


async def reload_weights(engine: HttpEngine, version: str) -> None:
    """Reloads the model's weights from their original path, as weight version `version`.

    Raises EngineUnavailable, also if the engine refuses, or TimeoutError.
    """
    await engine.flush()  # SGLang flushes too, but crashes if it has to wait for the flush
    body = msgspec.json.encode({"model_path": engine.info.model_path, "weight_version": version})
    path = "/update_weights_from_disk"
    async with asyncio.timeout(LOAD_TIMEOUT_S), engine.send("POST", path, body) as response:
        if not response.ok:
            raise EngineUnavailable(await response.text(), engine_id=engine.info.engine_id)


def kv_hit_share(record: Recorder) -> float | None:
    """Returns the share of continuations' input tokens that were not recomputed; None if there are
    no continuations."""
    needed = record.totals.reused + record.totals.recomputed
    return round(record.totals.reused / needed, 6) if needed else None


def drift(rows: Sequence[SoakRow]) -> dict[str, float]:
    """Returns the growth per rollout of each figure in DRIFTING: the least-squares slope after the
    warm-up.

    It is empty for fewer than two warm rollouts, and has no figure that any rollout lacks.
    """
    warm = rows[WARM_UP:]
    if len(warm) < 2:
        return {}
    numbers = [row.number for row in warm]
    series = {name: [getattr(row, name) for row in warm] for name in DRIFTING}
    return {
        name: round(linear_regression(numbers, values).slope, 6)
        for name, values in series.items()
        if None not in values
    }


def draw_soak(rows: Sequence[SoakRow], path: Path) -> list[Path]:
    """Draws time and memory growth over the rollouts of the soak."""
    numbers = [row.number + 1 for row in rows]
    shares = [100 * row.kv_hit_share for row in rows if row.kv_hit_share is not None]
    found = f"KV of continuations found: {min(shares):.1f} % and more." if shares else ""
    with styled_figure(12, 5.4) as figure:
        headline(figure, f"{len(rows)} rollouts in a row: time and memory", found)
        time, memory = figure.subplots(1, 2)
        time.plot(numbers, [row.wall_s for row in rows], "o-", color=OURS)
        time.set_title("seconds")
        time.set_ylim(0, 1.15 * time.get_ylim()[1])
        for name, style, colour in (
            ("driver", "o-", OURS),
            ("engines", "^-", PLAIN),
            ("others", "s-", PAPER),
        ):
            used: list[float] = [getattr(row, f"{name}_mb") for row in rows]
            label = f"{name}, above {used[0]:,.0f}"
            memory.plot(numbers, [mb - used[0] for mb in used], style, color=colour, label=label)
        memory.axhline(0, color=INK, lw=0.8, zorder=0)
        memory.set_title("MB above the first rollout's")
        handles, labels = memory.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower right", ncols=3)
        for axis in (time, memory):
            axis.set_xlabel("rollout")
            axis.xaxis.get_major_locator().set_params(integer=True)
        return save(figure, path)


def _mb(processes: Iterable[psutil.Process]) -> float:
    sets = (query_or(process.memory_info, None) for process in processes)
    return round(sum(one.rss for one in sets if one is not None) / MB, 1)
