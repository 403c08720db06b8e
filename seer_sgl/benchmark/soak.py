"""Consecutive rollouts with a weight update after each, to detect drift."""

from collections.abc import AsyncIterator, Iterable, Sequence
from statistics import linear_regression

import msgspec
import psutil

from seer_sgl.report.recorder import Recorder

from .arms import EVERY, SEER
from .process_tree import process_tree, query_or
from .runner import Runner

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
    arm, seed = EVERY[SEER], runner.seeds[0]
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
        for engine in (await runner.servers(arm)).engines:
            await engine.reload_weights(f"soak-{number + 1}")


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


def _mb(processes: Iterable[psutil.Process]) -> float:
    sets = (query_or(process.memory_info, None) for process in processes)
    return round(sum(one.rss for one in sets if one is not None) / MB, 1)
