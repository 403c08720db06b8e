"""`seer-sgl rollout --compare`: a rollout, then the same one on plain SGLang."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from typing_extensions import override

from seer_sgl.config import Config, LocalEngines, with_values
from seer_sgl.driver.observer import Observer
from seer_sgl.engine.fleet import open_fleet
from seer_sgl.errors import ConfigError, RolloutError, SeerError
from seer_sgl.files import write_json
from seer_sgl.report.progress import ShownProgress
from seer_sgl.rollout.command import COMPARISON, RolledOut, roll_out
from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import Request, Sample

from .arms import ARMS, BASELINE
from .derive import arm_config
from .measure import TAKEN, Digests, SampleKey, Workload, digest, identical, roll

logger = logging.getLogger(__name__)
# The plain rollout is stopped after this many times the time of the rollout before it.
LIMIT = 10


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two rollouts of the same prompts with the same seed. Written as comparison.json.

    `seer_sgl`, `plain`: the main keys of their reports; `identical`: samples with equal tokens;
    `speedup`: the ratio of their tokens per second.
    """

    seed: int
    samples: int
    identical: int
    speedup: float
    seer_sgl: Mapping[str, Any]
    plain: Mapping[str, Any]

    def lines(self) -> list[str]:
        """Returns the result in two lines."""
        ours, plain = self.seer_sgl, self.plain
        same = self.identical == self.samples
        share = f"all {self.samples}" if same else f"{self.identical} of {self.samples}"
        return [
            "plain SGLang, whole groups pinned to engines: "
            f"{plain['wall_s']:.1f} s, tail {plain['tail_s']:.1f} s",
            f"seer-sgl: {ours['wall_s']:.1f} s, tail {ours['tail_s']:.1f} s: "
            f"{self.speedup:.2f}x as fast, {share} samples identical",
        ]

    def doubt(self, deterministic: bool) -> str | None:
        """Returns why samples differ; None if none do. `deterministic`: SGLang's setting."""
        if self.identical == self.samples:
            return None
        why = (
            "in half precision, batches of other sizes round differently (docs/exactness.md)"
            if deterministic
            else "without engines.sglang.enable-deterministic-inference SGLang ignores seeds"
        )
        return f"{self.samples - self.identical} of {self.samples} samples differ: {why}"


async def roll_out_and_compare(
    config: Config, out: Path, overwrite: bool, console: Console, timing: Timing = DEFAULT
) -> None:
    """Rolls out like `roll_out`, then on plain SGLang, and writes comparison.json into `out`.

    The engines of the first rollout have ended before the plain ones start. A failure or interrupt
    of the second loses nothing of the first. Raises SeerError, or CancelledError when interrupted.
    """
    if not isinstance(config.engines, LocalEngines):
        raise ConfigError(
            "--compare: it starts plain SGLang itself, which needs engines.launch: local"
        )
    plain = plain_config(config)
    digests = SampleDigests()
    ours = await roll_out(config, out, overwrite, console, observers=[digests])
    try:
        comparison, deterministic = await _compare(
            plain, ours, digests.taken, out, console, timing=timing
        )
        write_json(out / COMPARISON, msgspec.to_builtins(comparison))
        logger.info("wrote %s", out / COMPARISON)
    except asyncio.CancelledError:
        logger.info("the comparison is incomplete; the rollout in %s is complete", out)
        raise
    except SeerError as error:
        # A failed start shows the end of a log; here its name is enough.
        why = str(error).partition("\n")[0].replace("the end of ", "see ").rstrip(":")
        raise RolloutError(f"--compare: {why}; the rollout in {out} is complete") from error
    for line in comparison.lines():
        logger.info("%s", line)
    if doubt := comparison.doubt(deterministic):
        logger.warning("%s", doubt)


def plain_config(config: Config) -> Config:
    """Returns the config without Seer: whole groups pinned to plain engines, all sent at once."""
    plain = arm_config(ARMS[BASELINE], config, config.rollout.seed or 0, None)
    return with_values(plain, {"rollout.seed": config.rollout.seed})


class SampleDigests(Observer):
    """Collects a digest of every sample; one that failed has nothing to compare."""

    def __init__(self) -> None:
        self.taken: dict[SampleKey, bytes] = {}

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        if sample.failure is None:
            self.taken[sample.group_id, sample.index] = digest(sample.response_ids.tobytes())


async def _compare(
    plain: Config,
    ours: RolledOut,
    digests: Digests,
    out: Path,
    console: Console,
    *,
    timing: Timing,
) -> tuple[Comparison, bool]:
    """Returns the comparison, and whether the plain engines ran deterministic inference."""
    seed = ours.report["seed"]
    limit_s = max(timing.compare_least_s, LIMIT * ours.report["wall_s"])
    logger.info("now the same rollout on plain SGLang, for at most %.0f s", limit_s)
    config = with_values(plain, {"rollout.seed": seed})
    async with open_fleet(config.fleet, out / "engines" / "plain") as fleet:
        infos = [engine.info for engine in fleet.engines]
        progress = ShownProgress(infos, len(ours.prompts), sum(prompt.n for prompt in ours.prompts))
        work = Workload(seed, ours.prompts)
        try:
            async with asyncio.timeout(limit_s), progress.shown(console):
                rolled = await roll(
                    BASELINE,
                    fleet,
                    config,
                    work,
                    number=0,
                    reference=digests,
                    observers=[progress],
                )
        except TimeoutError as error:
            raise RolloutError(
                f"plain SGLang had {progress.requests_done} of {progress.requests} samples after "
                f"{limit_s:.0f} s and was stopped"
            ) from error
    row = msgspec.to_builtins(rolled.row)
    comparison = Comparison(
        seed=seed,
        samples=len(digests),
        identical=identical(rolled.digests, digests),
        speedup=_ratio(ours.report["throughput_tok_s"], row["throughput_tok_s"]),
        seer_sgl={key: ours.report[key] for key in TAKEN},
        plain={key: row[key] for key in TAKEN},
    )
    return comparison, all(info.deterministic for info in infos)


def _ratio(ours: float, plain: float) -> float:
    return round(ours / plain, 3) if plain else 0.0
