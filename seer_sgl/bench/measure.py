"""One rollout of one arm: its samples' names, its figures, and what is needed to draw it."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from seer_sgl.config import Config
from seer_sgl.engine.fleet import Fleet
from seer_sgl.errors import RolloutError
from seer_sgl.rollout.recorder import Recorder
from seer_sgl.rollout.rollout import Rollout
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.types import EngineInfo, Prompt

SampleKey = tuple[str, int]  # group id, index
Digests = Mapping[SampleKey, bytes]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one rollout. Seconds and tokens; engines in their order.

    `idle`: share of the time in which an engine had no request (behind a router: none had one);
    `forward_steps`: batches that the engines ran; `engine_cpu_s`: CPU time of their processes, None
    where they run elsewhere, and behind a router. `recomputed_tokens`: of continuations; what an
    engine prefills again after it has preempted a request is not in it.
    """

    arm: str
    seed: int
    round: int
    samples: int
    response_tokens: int
    wall_s: float
    throughput_tok_s: float
    tail_s: float
    idle: list[float]
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
    engine_cpu_s: float | None
    driver_cpu_s: float
    identical_share: float


class Rolled(msgspec.Struct, frozen=True):
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
) -> Rolled:
    """Roll `work` out on engines that have forgotten what they had cached, in round `number`.

    `reference`: the samples that every one is compared with. Raises SeerError.
    """
    for engine in fleet.engines:
        await engine.flush()
    cpu = CpuClock([engine.info for engine in fleet.engines])
    steps = await _forward_steps(fleet)
    digests: dict[SampleKey, bytes] = {}
    lengths: dict[SampleKey, int] = {}
    async with Rollout(config, fleet=fleet) as rollout:
        cpu.start()
        async for group in rollout.run(work.prompts, limits=work.limits):
            for sample in group.samples:
                key = (sample.group_id, sample.index)
                digests[key] = digest(sample.response_ids.tobytes())
                lengths[key] = sample.response_length
        driver_s, engines_s = cpu.stop()
        report = rollout.report()
        record = rollout.recorder
    if record is None:
        raise RolloutError("nothing was rolled out")
    ran = await _forward_steps(fleet)
    drafting = report["drafting"]
    same = len(digests) if reference is None else identical(digests, reference)
    row = Row(
        arm=arm,
        seed=work.seed,
        round=number,
        idle=[engine["idle_share"] for engine in report["engines"]],
        kv_peak=max(engine["kv_peak"] for engine in report["engines"]),
        drafting_cpu_s=drafting["draft_cpu_s"] if drafting else None,
        forward_steps=None if ran is None or steps is None else ran - steps,
        engine_cpu_s=engines_s,
        driver_cpu_s=round(driver_s, 3),
        identical_share=same / len(digests) if digests else 0.0,
        **{key: report[key] for key in TAKEN},
    )
    return Rolled(row, record, digests, lengths, work.prompts)


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


async def _forward_steps(fleet: Fleet) -> int | None:
    counts = [await engine.forward_steps() for engine in fleet.engines]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


class CpuClock:
    """CPU seconds of this process, and of the engines' processes that are its own."""

    def __init__(self, engines: Sequence[EngineInfo]) -> None:
        ports = {info.url.rpartition(":")[2] for info in engines}
        servers = [
            child
            for child in psutil.Process().children()
            if ports & set(_command(child)) and "seer_sgl.engine.plugin.server" in _command(child)
        ]
        self._processes = [
            process for server in servers for process in (server, *server.children(recursive=True))
        ]

    def start(self) -> None:
        """Count from now on."""
        self._own, self._theirs = time.process_time(), self._engines()

    def stop(self) -> tuple[float, float | None]:
        """Seconds since the start: the driver's, and the engines'."""
        theirs = round(self._engines() - self._theirs, 2) if self._processes else None
        return time.process_time() - self._own, theirs

    def _engines(self) -> float:
        return sum(map(_cpu_s, self._processes))


def _cpu_s(process: psutil.Process) -> float:
    """Nothing of one that has ended."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def write_lengths(path: Path, lengths: Mapping[SampleKey, int]) -> None:
    """What the oracle knows (rollout/lengths.py)."""
    with path.open("wb") as file:
        for (group_id, index), length in lengths.items():
            record = {"group_id": group_id, "index": index, "response_length": length}
            file.write(msgspec.json.encode(record) + b"\n")
