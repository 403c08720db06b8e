"""One rollout of one arm: its samples' names, its figures, and what is needed to draw it."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from seer_sgl.config import Config
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.fleet import Fleet
from seer_sgl.errors import RolloutError
from seer_sgl.report.recorder import Recorder
from seer_sgl.rollout.rollout import Rollout
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.types import EngineInfo, EngineWork, Prompt

from .process_tree import process_tree, query_or
from .router import RoutedEngine, servers_of

SampleKey = tuple[str, int]  # group id, index
Digests = Mapping[SampleKey, bytes]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one rollout. Seconds and tokens; engines in their order.

    `idle`: share of the time in which an engine had no request, None behind a router;
    `forward_steps`: batches that the engines ran; `prefilled_tokens`: input tokens found in no
    cache, those of a preempted request again; `recomputed_tokens`: of them, of continuations.
    `engine_cpu_s`: CPU time of their processes, None where they run elsewhere; `other_cpu_s`: of
    the routers, KV pools and draft hubs that are up, whichever arm runs.
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
    other_cpu_s: float
    driver_cpu_s: float
    identical_share: float


class Measurement(msgspec.Struct, frozen=True):
    """A rollout that was measured."""

    row: Row
    record: Recorder
    digests: Digests
    lengths: dict[SampleKey, int]
    prompts: list[Prompt]


class Workload(msgspec.Struct, frozen=True):
    """What a seed rolls out. `limits`: imposed lengths of a trace."""

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
) -> Measurement:
    """Roll `work` out on engines that have forgotten what they had cached, in round `number`.

    `reference`: the samples that every one is compared with. Raises SeerError.
    """
    servers = servers_of(fleet)
    for server in servers:
        await server.flush()
    cpu = CpuClock([server.info for server in servers])
    before = await _work(servers)
    digests: dict[SampleKey, bytes] = {}
    lengths: dict[SampleKey, int] = {}
    async with Rollout(config, fleet=fleet) as rollout:
        cpu.start()
        async for group in rollout.run(work.prompts, limits=work.limits):
            for sample in group.samples:
                key = (sample.group_id, sample.index)
                digests[key] = digest(sample.response_ids.tobytes())
                lengths[key] = sample.response_length
        spent = cpu.stop()
        report = rollout.report()
        record = rollout.recorder
    if record is None:
        raise RolloutError("nothing was rolled out")
    done = _since(before, await _work(servers))
    drafting = report["drafting"]
    routed = isinstance(fleet.engines[0], RoutedEngine)
    same = len(digests) if reference is None else identical(digests, reference)
    row = Row(
        arm=arm,
        seed=work.seed,
        round=number,
        idle=None if routed else [engine["idle_share"] for engine in report["engines"]],
        kv_peak=max(engine["kv_peak"] for engine in report["engines"]),
        drafting_cpu_s=drafting["draft_cpu_s"] if drafting else None,
        forward_steps=None if done is None else done.forward_steps,
        prefilled_tokens=None if done is None else done.prefilled_tokens,
        engine_cpu_s=None if spent.engines is None else round(spent.engines, 2),
        other_cpu_s=round(spent.others, 2),
        driver_cpu_s=round(spent.driver, 3),
        identical_share=same / len(digests) if digests else 0.0,
        **{key: report[key] for key in TAKEN},
    )
    return Measurement(row, record, digests, lengths, work.prompts)


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
    """The name of a response."""
    return hashlib.blake2b(content, digest_size=16).digest()


def identical(digests: Digests, reference: Digests) -> int:
    """How many samples are those of the reference."""
    return sum(reference.get(key) == name for key, name in digests.items())


async def _work(servers: Sequence[HttpEngine]) -> EngineWork | None:
    """Of all of them; None where one does not report it."""
    each = [await server.work() for server in servers]
    known = [work for work in each if work is not None]
    if len(known) < len(each):
        return None
    return EngineWork(
        forward_steps=sum(work.forward_steps for work in known),
        prefilled_tokens=sum(work.prefilled_tokens for work in known),
    )


def _since(before: EngineWork | None, after: EngineWork | None) -> EngineWork | None:
    if before is None or after is None:
        return None
    return EngineWork(
        forward_steps=after.forward_steps - before.forward_steps,
        prefilled_tokens=after.prefilled_tokens - before.prefilled_tokens,
    )


class CpuSeconds(NamedTuple):
    """CPU time: of this process, of the engines (None where they run elsewhere), of what else is
    below it but SGLang."""

    driver: float
    engines: float | None
    others: float


class CpuClock:
    """CPU time of this process, and of those below it."""

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
        """Count from now on."""
        self._began = self._now()

    def stop(self) -> CpuSeconds:
        """Seconds since the start."""
        driver, engines, others = (
            after - before for before, after in zip(self._began, self._now(), strict=True)
        )
        return CpuSeconds(driver, engines if self._engines else None, others)

    def _now(self) -> tuple[float, float, float]:
        return time.process_time(), _cpu_s(self._engines), _cpu_s(self._others)


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Together; nothing of one that has ended."""
    times = (query_or(process.cpu_times, None) for process in processes)
    return sum((one.user + one.system for one in times if one is not None), 0.0)


def write_lengths(path: Path, lengths: Mapping[SampleKey, int]) -> None:
    """What the oracle knows (rollout/lengths.py)."""
    with path.open("wb") as file:
        for (group_id, index), length in lengths.items():
            record = {"group_id": group_id, "index": index, "response_length": length}
            file.write(msgspec.json.encode(record) + b"\n")
