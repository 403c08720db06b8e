"""Simulates orders of requests on many draws of lengths, and on lengths of other shapes.

`python -m bench.policies --json` rolls out the three workloads with lengths of ten seeds under
`seer_published`, `seer` and `oracle`. Then the engines of Qwen2-VL-72B with lengths that are not
log-normal with one spread, and two small engines with the lengths of bench/results' CPU benchmark.
It prints total and tail time of each.
"""

import argparse
import json
import math
import statistics
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seer_sgl.config import with_values
from seer_sgl.sim.config import EngineConfig, SimConfig
from seer_sgl.sim.opening import SimRequest
from seer_sgl.sim.source import load_settings, workload_file, workload_names
from seer_sgl.sim.variants import Scenario
from seer_sgl.traces.trace import Responses

Floats = npt.NDArray[np.float64]
POLICIES = ("seer_published", "seer", "oracle")
DRAWS = 10
SHAPE_DRAWS = 3
SHAPES_ON = "qwen2-vl-72b"
GROUPS, N, LIMIT = 600, 16, 40_960
CPU_LENGTHS = Path(__file__).parent / "results" / "2026-11-25-cpu-seeds"
CPU_LIMIT = 4_000
# Two engines of one core each, about as the CPU benchmark measures them, without drafts.
CPU_ENGINES = EngineConfig(
    count=2,
    kv_tokens=16_384,
    max_running_requests=16,
    weights_gb=1e-6,
    active_params_b=1e-6,
    kv_bytes_per_token=1536,
    bandwidth_gb_s=8.0,
    overhead_ms=4.0,
    row_overhead_us=150.0,
)


def bimodal(random: np.random.Generator) -> Floats:
    """Groups of short responses and groups of long ones."""
    long = random.random(GROUPS) >= 0.7
    means = np.where(long, math.log(18_000), math.log(2_000)) + 0.2 * random.standard_normal(GROUPS)
    return varied(random, means, 0.3)


def mixed(random: np.random.Generator) -> Floats:
    """Short and long responses in one group, whose share of long ones differs."""
    long = random.random((GROUPS, N)) < random.beta(0.5, 1.2, GROUPS)[:, None]
    means = np.where(long, math.log(18_000), math.log(1_500))
    lengths: Floats = np.exp(means + 0.3 * random.standard_normal((GROUPS, N)))
    return lengths


def loops(random: np.random.Generator) -> Floats:
    """One response in seventeen runs up to the limit, whatever its group is like."""
    drawn = varied(random, math.log(4_500) + 0.8 * random.standard_normal(GROUPS), 0.4)
    return np.where(random.random((GROUPS, N)) < 0.06, LIMIT, drawn)


def uniform(random: np.random.Generator) -> Floats:
    """Group means up to 15,000, each as likely; siblings are almost equal."""
    return varied(random, np.log(random.uniform(200, 15_000, GROUPS)), 0.15)


def unrelated(random: np.random.Generator) -> Floats:
    """Siblings are no more alike than others."""
    return varied(random, np.full(GROUPS, math.log(4_600)), 1.0)


def varied(random: np.random.Generator, means: Floats, spread: float) -> Floats:
    """Returns log-normal lengths around the means of groups."""
    lengths: Floats = np.exp(means[:, None] + spread * random.standard_normal((GROUPS, N)))
    return lengths


SHAPES: tuple[Callable[[np.random.Generator], Floats], ...] = (
    bimodal,
    mixed,
    loops,
    uniform,
    unrelated,
)


def shaped(shape: Callable[[np.random.Generator], Floats], seed: int) -> Scenario:
    """Returns a rollout with lengths of a shape."""
    drawn = np.clip(np.rint(shape(np.random.default_rng(seed))), 1, LIMIT)
    responses = [
        Responses(f"g{i}", array("i", [i]) * 1_200, [int(length) for length in row])
        for i, row in enumerate(drawn)
    ]
    return Scenario(shape.__name__, responses, load_settings(workload_file(SHAPES_ON)))


def on_cpu(path: Path) -> Scenario:
    """Returns a rollout of two small engines with the lengths of a benchmark."""
    lengths: dict[str, list[int]] = {}
    for line in path.read_text().splitlines():
        sample = json.loads(line)
        lengths.setdefault(sample["group_id"], []).append(sample["response_length"])
    responses = [
        Responses(name, array("i", [i]) * 20, each)
        for i, (name, each) in enumerate(lengths.items())
    ]
    values = {"scheduling.chunk_tokens": 256, "workload.lengths.max": CPU_LIMIT}
    return Scenario(path.stem, responses, with_values(SimConfig(engine=CPU_ENGINES), values))


def scenarios(only: Sequence[str], draws: int) -> Iterator[tuple[str, str, Scenario]]:
    """Yields the name of a kind of rollout, of its lengths, and the rollout."""
    for workload in workload_names():
        for seed in range(1, draws + 1) if workload in only else ():
            overrides = [f"workload.lengths.seed={seed}"]
            yield workload, str(seed), SimRequest(workload=workload, overrides=overrides).open()
    for shape in SHAPES:
        for seed in range(1, min(draws, SHAPE_DRAWS) + 1) if shape.__name__ in only else ():
            yield shape.__name__, str(seed), shaped(shape, seed)
    for path in sorted(CPU_LENGTHS.glob("lengths-*.jsonl")) if "cpu" in only else ():
        yield "cpu", path.stem, on_cpu(path)


def gains(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns the gain of `seer` over the paper's order: throughput and tail, mean and range."""
    faster = [row["seer_published"] / row["seer"] for row in rows]
    tails = [row["seer tail"] / max(row["seer_published tail"], 0.1) for row in rows]
    ideal = [row["oracle"] / row["seer"] for row in rows]
    found = {
        "x_published": statistics.mean(faster),
        "least": min(faster),
        "most": max(faster),
        "tail_x_published": statistics.mean(tails),
        "of_oracle": statistics.mean(ideal),
        "published_of_oracle": statistics.mean(
            row["oracle"] / row["seer_published"] for row in rows
        ),
    }
    return {"draws": len(rows), **{key: round(value, 3) for key, value in found.items()}}


def main() -> None:
    """Simulates all; prints one JSON object last."""
    kinds = [*workload_names(), *(shape.__name__ for shape in SHAPES), "cpu"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, help="these lengths")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of each workload's lengths")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {}
    for kind, name, scenario in scenarios(options.only, options.draws):
        row: dict[str, float] = {}
        for policy in POLICIES:
            outcome = scenario.alone(policy)
            row |= {policy: outcome.wall_s, f"{policy} tail": outcome.tail_s}
        rows.setdefault(kind, []).append(row)
        if not options.json:
            print(kind, name, row, flush=True)
    print(json.dumps({kind: gains(each) for kind, each in rows.items()}))


if __name__ == "__main__":
    main()
