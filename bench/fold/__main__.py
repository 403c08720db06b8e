"""Engines given back before a rollout ends: `python -m bench.fold [--only NAME]`.

Of each draw of lengths it simulates the policy `seer` as it is, and folded (policy.py) with several
slacks, with the true lengths known and with the posterior of `seer`; and it finds the bound.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bench.policies import SHAPES, shaped
from seer_sgl.sim.opening import SimRequest
from seer_sgl.sim.source import workload_names
from seer_sgl.sim.variants import Scenario

from .bound import Course, given_back
from .rollout import Arm, rolled_out

SLACKS = (0.0, 0.01, 0.02, 0.05)


def rows(scenario: Scenario, arms: Sequence[Arm]) -> Iterator[dict[str, Any]]:
    """Yields the figures of a draw: first those without folding, with the bound by slack."""
    course, engine = Course(), scenario.config.engine
    plain = rolled_out(scenario, None, [course])
    bound = {
        str(slack): round(given_back(course, plain.wall_s, slack, engine)[0], 4) for slack in SLACKS
    }
    yield {"arm": None, "late": 0.0, **msgspec.to_builtins(plain), "bound": bound}
    for arm in arms:
        folded = rolled_out(scenario, arm)
        late = round(folded.wall_s / plain.wall_s - 1, 4)
        yield {"arm": msgspec.to_builtins(arm), "late": late, **msgspec.to_builtins(folded)}


def draw(name: str, seed: int) -> Scenario:
    """Returns a draw of a workload's lengths, or of a shape's (bench/policies.py)."""
    shapes = {shape.__name__: shape for shape in SHAPES}
    if name in shapes:
        return shaped(shapes[name], seed)
    return SimRequest(workload=name, overrides=[f"workload.lengths.seed={seed}"]).open()


def main() -> None:
    """Simulates; prints a line per rollout, and one JSON object last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [*workload_names(), *(shape.__name__ for shape in SHAPES)]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these lengths")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="draws of lengths")
    parser.add_argument("--slacks", nargs="+", type=float, default=SLACKS, help="of the policy")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    arms = [Arm(slack=slack, oracle=known) for known in (False, True) for slack in options.slacks]
    found = []
    for name in options.only:
        for seed in options.seeds:
            for row in rows(draw(name, seed), arms):
                found.append({"lengths": name, "seed": seed, **row})
                if not options.json:
                    print(name, seed, row["arm"], row["late"], row["released"], flush=True)
    print(json.dumps({"rollouts": found}))


if __name__ == "__main__":
    main()
