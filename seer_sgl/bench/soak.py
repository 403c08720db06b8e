"""Rollouts in a row with an update of the weights after each: nothing may drift."""

import contextlib
from collections.abc import AsyncIterator

import msgspec
import psutil

from .arms import EVERY, SEER
from .runner import Runner

MB = 1 << 20


class SoakRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of the soak. Memory in MB: of this process, and of all its children."""

    number: int
    wall_s: float
    throughput_tok_s: float
    retractions: int
    migrations: int
    fetches: int
    recomputed_tokens: int
    storage_tokens: int  # input tokens read from the pool
    accept_length: float | None
    identical_share: float
    driver_mb: float
    children_mb: float


async def soak(runner: Runner, rollouts: int) -> AsyncIterator[SoakRow]:
    """Arm `seer`, the first seed, `rollouts` times. The new weights are the old ones, so samples
    stay what they are; engines and pool treat them as others."""
    arm, seed = EVERY[SEER], runner.seeds[0]
    for number in range(rollouts):
        rolled = await runner.once(arm, number, seed)
        row = rolled.row
        yield SoakRow(
            number=number,
            wall_s=row.wall_s,
            throughput_tok_s=row.throughput_tok_s,
            retractions=row.retractions,
            migrations=row.migrations,
            fetches=row.fetches,
            recomputed_tokens=row.recomputed_tokens,
            storage_tokens=rolled.record.cached["storage"],
            accept_length=row.accept_length,
            identical_share=row.identical_share,
            driver_mb=_mb([psutil.Process()]),
            children_mb=_mb(psutil.Process().children(recursive=True)),
        )
        for engine in (await runner.servers(arm)).engines:
            await engine.reload_weights(f"soak-{number + 1}")


def _mb(processes: list[psutil.Process]) -> float:
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            total += process.memory_info().rss
    return round(total / MB, 1)
