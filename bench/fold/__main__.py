"""Engines given back before a rollout ends: `python -m bench.fold FILE [--only NAME]`.

Of each draw of lengths it simulates the policy `seer` unmodified, and folded (policy.py) with
several slacks, with the true lengths known and with the posterior of `seer`. It finds the bound.
It appends a JSON line per rollout to the file, and leaves out what the file has. Then it prints a
table (table.py), and draws a picture (picture.py) if it is told where.
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.policies import CPU_LENGTHS, SHAPES, on_cpu, shaped
from seer_sgl.sim.opening import SimRequest
from seer_sgl.sim.source import workload_names
from seer_sgl.sim.variants import Scenario

from .bound import Course, given_back
from .picture import LANES_OF, SLACK, draw, has_lanes
from .rollout import Arm, rolled_out
from .table import Line, table

SLACKS = (0.0, 0.01, 0.02, 0.05)
CPU = "cpu"  # the lengths of the CPU benchmark


def not_folded(scenario: Scenario) -> dict[str, Any]:
    """Returns the figures of a draw without folding, with the bound by slack."""
    course, engine = Course(), scenario.config.engine
    plain = rolled_out(scenario, None, [course])
    bound = {
        str(slack): round(given_back(course, plain.wall_s, slack, engine)[0], 4) for slack in SLACKS
    }
    return {"arm": None, "late": 0.0, **msgspec.to_builtins(plain), "bound": bound}


def folded(scenario: Scenario, arm: Arm, plain_s: float) -> dict[str, Any]:
    """Returns the figures of a draw that is folded. `plain_s`: its seconds without folding."""
    found = rolled_out(scenario, arm)
    late = round(found.wall_s / plain_s - 1, 4)
    return {"arm": msgspec.to_builtins(arm), "late": late, **msgspec.to_builtins(found)}


def drawn(name: str, seed: int) -> Scenario:
    """Returns a draw of a workload's lengths, or of a shape's (bench/policies.py)."""
    shapes = {shape.__name__: shape for shape in SHAPES}
    if name in shapes:
        return shaped(shapes[name], seed)
    if name == CPU:
        return on_cpu(CPU_LENGTHS / f"lengths-{seed}.jsonl")
    return SimRequest(workload=name, overrides=[f"workload.lengths.seed={seed}"]).open()


def rollouts(name: str, seed: int, arms: Sequence[Arm], there: Sequence[Line]) -> Iterator[Line]:
    """Simulates and yields the rollouts of a draw that are not there yet."""
    own = [line for line in there if (line["lengths"], line["seed"]) == (name, seed)]
    plain = next((line for line in own if line["arm"] is None), None)
    had = [line["arm"] for line in own]
    left = [arm for arm in arms if msgspec.to_builtins(arm) not in had]
    if plain is not None and not left:
        return
    scenario = drawn(name, seed)
    if plain is None:
        plain = {"lengths": name, "seed": seed, **not_folded(scenario)}
        yield plain
    for arm in left:
        yield {"lengths": name, "seed": seed, **folded(scenario, arm, plain["wall_s"])}


def read(path: Path) -> list[Line]:
    """Returns the rollouts of a file, none if there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def main() -> None:
    """Simulates, and prints and draws what the file has then."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [*workload_names(), *(shape.__name__ for shape in SHAPES), CPU]
    parser.add_argument("file", type=Path, help="of JSON lines")
    parser.add_argument(
        "--only", nargs="*", choices=names, default=names, help="these lengths, or none"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="draws of lengths")
    parser.add_argument("--slacks", nargs="+", type=float, default=SLACKS, help="of the policy")
    parser.add_argument("--picture", type=Path, help="its path, without a suffix")
    options = parser.parse_args()
    there = read(options.file)
    simulated = LANES_OF in options.only and SLACK in options.slacks
    if options.picture and not simulated and not has_lanes(there):
        parser.error(f"--picture: shows {LANES_OF} with a slack of {SLACK}: simulate it too")
    arms = [Arm(slack=slack, oracle=known) for slack in options.slacks for known in (False, True)]
    with options.file.open("a") as file:
        for name, seed in itertools.product(options.only, options.seeds):
            for line in rollouts(name, seed, arms, there):
                print(json.dumps(line), file=file, flush=True)
    lines = read(options.file)
    print(table(lines))
    if options.picture:
        draw(lines, options.picture)


if __name__ == "__main__":
    main()
