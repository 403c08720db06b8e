"""One rollout of one arm: its samples' digests, its figures, and the record to draw it from."""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from seer_sgl.config import Config
from seer_sgl.driver.observer import Observer
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.fleet import Fleet
from seer_sgl.engine_types import EngineInfo, EngineWork
from seer_sgl.errors import RolloutError
from seer_sgl.report.recorder import Recorder
from seer_sgl.rollout.rollout import Rollout
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.types import Prompt

from .process_tree import process_tree, query_or

SampleKey = tuple[str, int]  # group id, index
Digests = Mapping[SampleKey, bytes]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one rollout, in seconds and tokens; engines in their order.

    `idle`: per engine, share of the time without a request, None if unknown;
    `forward_steps`: batches that the engines ran; `prefilled_tokens`: input tokens found in no
    cache, counted again for a preempted request; `recomputed_tokens`: the part of them that belongs
    to continuations. `engine_cpu_s`: CPU time of the engines' processes, None if they run on
    another machine; `other_cpu_s`: CPU time of all other child processes: KV pool, draft hub.
    After a restart, steps, prefilled tokens and CPU times are unknown: None.
    """

    arm: str
    seed: int
    round: int
    samples: int
    response_tokens: int
    wall_s: float
    throughput_tok_s: float
    tail_s: float
    idle: list[float] | None
    retractions: int
    chunks: int
    migrations: int
    fetches: int
    recomputed_tokens: int
    moved_bytes: int
    kv_peak: float
    accept_length: float | None
    drafting_cpu_s: float | None
    forward_steps: int | None
    prefilled_tokens: int | None
    engine_cpu_s: float | None
    other_cpu_s: float | None
    driver_cpu_s: float
    identical_share: float


class Measurement(msgspec.Struct, frozen=True):
    """A measured rollout. `report`: that of the rollout (docs/report.md)."""

    row: Row
    record: Recorder
    digests: Digests
    lengths: dict[SampleKey, int]
    prompts: list[Prompt]
    report: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Workload(msgspec.Struct, frozen=True):
    """The workload of a seed. `limits`: imposed lengths of a trace."""

    seed: int
    prompts: list[Prompt]
    limits: KnownLengths | None = None


async def roll(
    arm: str,
    fleet: Fleet,
    config: Config,
    work: Workload,
    *,
    number: int,
    reference: Digests | None,
    observers: Sequence[Observer] = (),
) -> Measurement:
    """Rolls `work` out in round `number`, on engines with flushed caches.

    `reference`: the samples to compare with; None: the rollout is its own reference. Raises
    SeerError.
    """
    for engine in fleet.engines:
        await engine.flush()
    cpu = CpuClock([engine.info for engine in fleet.engines])
    before, servers = await total_work(fleet.engines), _servers(fleet.engines)
    digests: dict[SampleKey, bytes] = {}
    lengths: dict[SampleKey, int] = {}
    async with Rollout(config, fleet=fleet) as rollout:
        cpu.start()
        async for group in rollout.run(work.prompts, observers, work.limits):
            for sample in group.samples:
                key = (sample.group_id, sample.index)
                digests[key] = digest(sample.response_ids.tobytes())
                lengths[key] = sample.response_length
        spent = cpu.stop()
        report = rollout.report()
        record = rollout.recorder
    if record is None:
        raise RolloutError("nothing was rolled out")
    done = _since(before, await total_work(fleet.engines))
    if _servers(fleet.engines) != servers:  # the counters of a server begin at its start
        done = None
    drafting = report["drafting"]
    same = len(digests) if reference is None else identical(digests, reference)
    row = Row(
        arm=arm,
        seed=work.seed,
        round=number,
        idle=[engine["idle_share"] for engine in report["engines"]],
        kv_peak=max(engine["kv_peak"] for engine in report["engines"]),
        drafting_cpu_s=drafting["draft_cpu_s"] if drafting else None,
        forward_steps=None if done is None else done.forward_steps,
        prefilled_tokens=None if done is None else done.prefilled_tokens,
        engine_cpu_s=None if spent.engines is None else round(spent.engines, 2),
        other_cpu_s=None if spent.others is None else round(spent.others, 2),
        driver_cpu_s=round(spent.driver, 3),
        identical_share=same / len(digests) if digests else 0.0,
        **{key: report[key] for key in TAKEN},
    )
    return Measurement(row, record, digests, lengths, work.prompts, report)


TAKEN = (
    "samples",
    "response_tokens",
    "wall_s",
    "throughput_tok_s",
    "tail_s",
    "retractions",
    "chunks",
    "migrations",
    "fetches",
    "recomputed_tokens",
    "moved_bytes",
    "accept_length",
)


def digest(content: bytes) -> bytes:
    """Returns a hash that identifies a response."""
    return hashlib.blake2b(content, digest_size=16).digest()


def identical(digests: Digests, reference: Digests) -> int:
    """Returns the number of samples that equal the reference's."""
    return sum(reference.get(key) == name for key, name in digests.items())


async def total_work(engines: Sequence[HttpEngine]) -> EngineWork | None:
    """Returns the total work of all engines; None if one of them does not report it."""
    works = [await engine.work() for engine in engines]
    known = [work for work in works if work is not None]
    if len(known) < len(works):
        return None
    return EngineWork(
        forward_steps=sum(work.forward_steps for work in known),
        prefilled_tokens=sum(work.prefilled_tokens for work in known),
    )


def _servers(engines: Sequence[HttpEngine]) -> list[tuple[str, str | None]]:
    return [(engine.info.engine_id, engine.info.instance) for engine in engines]


def _since(before: EngineWork | None, after: EngineWork | None) -> EngineWork | None:
    if before is None or after is None:
        return None
    return EngineWork(
        forward_steps=after.forward_steps - before.forward_steps,
        prefilled_tokens=after.prefilled_tokens - before.prefilled_tokens,
    )


class CpuSeconds(NamedTuple):
    """CPU times in seconds: of this process, of the engines (None if they run on another machine),
    and of all other child processes. None: unknown, because one of them has ended."""

    driver: float
    engines: float | None
    others: float | None


class CpuClock:
    """Measures the CPU time of this process and its child processes."""

    def __init__(self, engines: Sequence[EngineInfo]) -> None:
        ports = {info.url.rpartition(":")[2] for info in engines}
        now = process_tree()
        self._engines = [
            process
            for server in now.servers
            if ports & set(server.command)
            for process in server.processes
        ]
        self._others = now.others

    def start(self) -> None:
        """Starts the measurement."""
        self._began = self._now()

    def stop(self) -> CpuSeconds:
        """Returns the CPU seconds since the start."""
        driver, engines, others = (
            after - before for before, after in zip(self._began, self._now(), strict=True)
        )
        return CpuSeconds(driver, _known(engines) if self._engines else None, _known(others))

    def _now(self) -> tuple[float, float, float]:
        return time.process_time(), _cpu_s(self._engines), _cpu_s(self._others)


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Returns the total CPU time; NaN if a process has ended."""
    times = (query_or(process.cpu_times, None) for process in processes)
    return sum((math.nan if one is None else one.user + one.system for one in times), 0.0)


def _known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds


def write_lengths(path: Path, lengths: Mapping[SampleKey, int]) -> None:
    """Writes the lengths for the oracle, in the format of rollout/lengths.py."""
    with path.open("wb") as file:
        for (group_id, index), length in lengths.items():
            record = {"group_id": group_id, "index": index, "response_length": length}
            file.write(msgspec.json.encode(record) + b"\n")
