"""Fits the simulated workloads to the paper's published baseline, and to no other figures.

`python -m bench.calibrate moonlight --write` searches for the parameters marked "fitted" in
configs/sim/moonlight.yaml such that the policy `group_round_robin` (whole groups pinned, undivided,
all sent at once) takes the published total and tail time; for Qwen2-VL-72B also the preemptions and
the idle share. Mean and longest response are right by construction (sim/workload.py).

There are more parameters than figures, so each parameter is also held near the value that hardware
and experience suggest (PRIORS). The objective is not continuous: a random search is followed by
shrinking steps around the best candidate. The loss of a candidate is a mean over several draws of
lengths, because draws differ by 10 % and more; the file then gets a typical draw. The fit does not
use the published figures of Seer.
"""

import argparse
import json
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.outcome import Outcome, outcome
from seer_sgl.sim.simulate import simulate
from seer_sgl.sim.source import load_settings, workload_file
from seer_sgl.sim.workload import sample

BASELINE = "group_round_robin"
SEEDS = (1, 2, 3)
# The paper's rollout is also one draw: the file gets the draw among these that is closest to it.
DRAWS = range(1, 9)
TOLERANCE = 0.03  # of a figure's logarithm: an error of 3 % costs as much as a prior's width


class Prior(NamedTuple):
    """The expected value of a parameter, and the standard deviation of its logarithm."""

    centre: float
    width: float


COMMON = {
    "workload.lengths.sigma": Prior(0.9, 0.25),  # reasoning models: p99 / median of 5 to 10
    "workload.lengths.group_share": Prior(0.7, 0.2),  # siblings correlate strongly (paper, Fig. 4)
}
PRIORS: dict[str, dict[str, Prior]] = {
    "moonlight": {
        **COMMON,
        "engine.kv_tokens": Prior(1.03e6, 0.2),
        "engine.bandwidth_gb_s": Prior(2010, 0.15),
        "engine.overhead_ms": Prior(15, 0.5),
    },
    "qwen2-vl-72b": {
        **COMMON,
        "engine.kv_tokens": Prior(1.12e6, 0.2),
        "engine.bandwidth_gb_s": Prior(16080, 0.15),
        "engine.overhead_ms": Prior(15, 0.5),
    },
    "kimi-k2": {
        **COMMON,
        "engine.kv_tokens": Prior(7.2e6, 0.4),
        "engine.bandwidth_gb_s": Prior(64300, 0.15),
        "engine.overhead_ms": Prior(30, 0.5),
    },
}
INTEGER, SEED = "engine.kv_tokens", "workload.lengths.seed"
DIGITS = 3  # of a fitted parameter; the fit is not more precise
Parameters = dict[str, float]


def settings(workload: str, parameters: Parameters, seed: int) -> SimConfig:
    """Returns the settings of the workload's file with other parameters, under the baseline."""
    overrides = [f"{key}={value:g}" for key, value in parameters.items() if key != INTEGER]
    if INTEGER in parameters:
        overrides.append(f"{INTEGER}={int(parameters[INTEGER])}")
    overrides += [f"workload.lengths.seed={seed}", f"scheduling.policy={BASELINE}"]
    return load_settings(workload_file(workload), overrides=overrides)


def baseline(workload: str, parameters: Parameters, seed: int) -> tuple[SimConfig, Outcome]:
    """Returns the settings and the baseline's figures with these parameters."""
    config = settings(workload, parameters, seed)
    return config, outcome(workload, BASELINE, simulate(sample(config.workload), config).record)


def residuals(config: SimConfig, result: Outcome) -> dict[str, float]:
    """Returns simulated over published, minus one, for each published figure."""
    paper = config.paper
    figures = {
        "wall_s": (result.wall_s, paper.wall_s),
        "tail_s": (result.tail_s, paper.tail_s),
        "preemptions": (result.preemptions, paper.preemptions),
        "idle_fraction": (result.idle_fraction, paper.idle_fraction),
    }
    return {
        name: max(simulated, 1e-9) / published - 1
        for name, (simulated, published) in figures.items()
        if published
    }


def loss(workload: str, parameters: Parameters) -> float:
    """Returns the misfit of the baseline's figures, averaged over draws, plus the distance from
    the priors."""
    rows = [residuals(*baseline(workload, parameters, seed)) for seed in SEEDS]
    means = [math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]]
    misfit = sum((math.log1p(mean) / TOLERANCE) ** 2 for mean in means)
    priors = PRIORS[workload]
    away = sum(
        (math.log(value / priors[key].centre) / priors[key].width) ** 2
        for key, value in parameters.items()
    )
    return misfit + away


def candidates(
    workload: str, evaluations: int, best: dict[str, Parameters]
) -> Iterator[Parameters]:
    """Yields candidates, first from the priors, then closer and closer around `best["is"]`."""
    random = np.random.default_rng(0)
    priors = PRIORS[workload]
    broad = evaluations // 4
    yield {key: prior.centre for key, prior in priors.items()}
    for i in range(1, evaluations):
        spread = 1.0 if i < broad else 0.6 * (1 - (i - broad) / (evaluations - broad)) + 0.05
        centre = {key: prior.centre for key, prior in priors.items()} if i < broad else best["is"]
        # Move along some axes at a time: most steps along all axes would increase the loss.
        moved = {
            key: centre[key] * math.exp(spread * prior.width * random.standard_normal())
            if i < broad or random.random() < 0.5
            else centre[key]
            for key, prior in priors.items()
        }
        moved["workload.lengths.group_share"] = min(moved["workload.lengths.group_share"], 0.98)
        yield {key: rounded(value) for key, value in moved.items()}


def rounded(value: float) -> float:
    """Returns the value rounded to DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")


def fit(workload: str, evaluations: int) -> Parameters:
    """Returns the best parameters found."""
    best: dict[str, Parameters] = {"is": {}}
    lowest = math.inf
    for i, parameters in enumerate(candidates(workload, evaluations, best)):
        value = loss(workload, parameters)
        if value < lowest:
            lowest, best["is"] = value, parameters
            shown = {key.rpartition(".")[2]: value for key, value in parameters.items()}
            print(f"{i:4} loss {lowest:9.2f}  {shown}", flush=True)
    return best["is"]


def write(workload: str, parameters: Parameters) -> None:
    """Writes the parameters into the workload's file and keeps its comments."""
    path = workload_file(workload)
    text = path.read_text()
    for key, value in parameters.items():
        leaf = key.rpartition(".")[2]
        shown = f"{int(value)}" if key in (INTEGER, SEED) else f"{value:g}"
        text, count = re.subn(rf"(?m)^(\s+{leaf}:) \S+", rf"\g<1> {shown}", text)
        if count != 1:
            raise SystemExit(f"{path}: {leaf} appears {count} times")
    path.write_text(text)


def main() -> None:
    """Fits (or only checks) one workload; prints one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=list(PRIORS))
    parser.add_argument("--evaluations", type=int, default=200, help="0: only check the file")
    parser.add_argument("--write", action="store_true", help="write the result into the file")
    parser.add_argument("--json", action="store_true", help="accepted for uniformity")
    options = parser.parse_args()
    parameters = fit(options.workload, options.evaluations) if options.evaluations else {}
    checked = {seed: check(options.workload, parameters, seed) for seed in DRAWS}
    typical = min(DRAWS, key=lambda seed: max(map(abs, checked[seed].values())))
    if options.write:
        write(options.workload, {**parameters, SEED: typical})
    print(
        json.dumps(
            {
                "workload": options.workload,
                "fitted": parameters,
                "seed": typical,
                "residuals": checked[typical],
                "residuals_by_seed": checked,
            }
        )
    )


def check(workload: str, parameters: Parameters, seed: int) -> dict[str, float]:
    """Returns the residuals of one draw of lengths."""
    return {
        name: round(value, 4)
        for name, value in residuals(*baseline(workload, parameters, seed)).items()
    }


if __name__ == "__main__":
    main()
