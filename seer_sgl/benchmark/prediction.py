"""The simulation of the same benchmark, with step times measured on the servers."""

import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from seer_sgl.config import with_values
from seer_sgl.engine.fleet import Fleet
from seer_sgl.sim.config import EngineConfig, SimConfig
from seer_sgl.sim.outcome import Outcome, outcome
from seer_sgl.sim.run import simulate
from seer_sgl.sim.workload import Responses

from .arms import BASELINE, EVERY, SEER, Arm
from .config import BenchConfig
from .constants import draft_overhead_us, measured_engine
from .measure import Measurement
from .runner import FAILURES, Runner

logger = logging.getLogger(__name__)
Cases = Mapping[tuple[str, int], Measurement]


async def measure_constants(runner: Runner, arms: Sequence[Arm]) -> EngineConfig | None:
    """Returns the step times of the plain servers, and the verification time of drafts if SEER's
    servers start. If they do not, the arm fails later on its own. None if no plain arm runs or the
    measurement fails."""
    if EVERY[BASELINE] not in arms:
        return None
    logger.info("measuring step times")
    try:
        plain = await runner.servers(EVERY[BASELINE])
        infos = [engine.info for engine in plain.engines]
        engine = await measured_engine(infos, runner.kv_bytes, runner.api_key)
    except FAILURES as error:
        logger.info("skipping the simulation: %s", error)
        return None
    if EVERY[SEER] not in arms:
        return engine
    try:
        forward = await _forward_ms(await runner.servers(EVERY[SEER]))
    except FAILURES as error:
        logger.info("simulating without the verification time of drafts: %s", error)
        return engine
    return msgspec.structs.replace(engine, draft_overhead_us=draft_overhead_us(forward))


async def _forward_ms(fleet: Fleet) -> list[list[float]]:
    counters = [await engine.drafting() for engine in fleet.engines]
    return [row for one in counters if one is not None for row in one["forward_ms"]]


def predict(config: BenchConfig, engine: EngineConfig | None, cases: Cases) -> dict[str, Any]:
    """Returns the measured and the simulated figures of every arm that the simulator supports, on
    the measured lengths; empty without `engine`. Means over the latest round of each seed."""
    if engine is None:
        return {}
    reserve = config.bench.reserve_tokens
    if reserve is not None:
        engine = msgspec.structs.replace(engine, reserve_tokens=reserve)
    arms = {
        name: _compared(
            config, engine, EVERY[name], [c for (arm, _), c in cases.items() if arm == name]
        )
        for name in EVERY
        if any(arm == name for arm, _ in cases) and _supported(EVERY[name])
    }
    return {"engine": msgspec.to_builtins(engine), "arms": arms}


def _supported(arm: Arm) -> bool:
    return not (arm.router or arm.greedy)


def _compared(
    config: BenchConfig, engine: EngineConfig, arm: Arm, cases: Sequence[Measurement]
) -> dict[str, float]:
    predicted = [_simulated(config, engine, arm, case) for case in cases]
    wall_s = statistics.mean(case.row.wall_s for case in cases)
    predicted_wall_s = statistics.mean(one.wall_s for one in predicted)
    return {
        "wall_s": round(wall_s, 3),
        "predicted_wall_s": round(predicted_wall_s, 3),
        "error": round(predicted_wall_s / wall_s - 1, 4),
        "tail_s": round(statistics.mean(case.row.tail_s for case in cases), 3),
        "predicted_tail_s": round(statistics.mean(one.tail_s for one in predicted), 3),
        "retractions": statistics.mean(case.row.retractions for case in cases),
        "predicted_retractions": statistics.mean(one.preemptions for one in predicted),
    }


def _simulated(config: BenchConfig, engine: EngineConfig, arm: Arm, case: Measurement) -> Outcome:
    settings = SimConfig(
        engine=engine, pool=config.bench.pool, speculation=config.bench.speculation
    )
    scheduling = with_values(config.scheduling, {"policy": arm.policy, "lengths": None})
    settings = with_values(
        settings,
        {
            "pool.enabled": arm.pool,
            "speculation.enabled": arm.drafts,
            "scheduling": scheduling,
            "workload.lengths.max": max(case.lengths.values()),
        },
    )
    return outcome(arm.name, arm.policy, simulate(_responses(case), settings))


def _responses(case: Measurement) -> list[Responses]:
    lengths: dict[str, dict[int, int]] = {}
    for (group_id, index), length in case.lengths.items():
        lengths.setdefault(group_id, {})[index] = length
    return [
        Responses(
            prompt.prompt_id,
            prompt.prompt_ids,
            [lengths[prompt.prompt_id][i] for i in range(prompt.n)],
        )
        for prompt in case.prompts
    ]
