"""`make chaos`: a seeded rollout on real engines while what it runs on is killed and disturbed.

python -m tests.chaos                       # draws a seed, and prints it first
python -m tests.chaos --seed 17             # the same plan again
python -m tests.chaos --seed 17 --each      # each kind of fault in a rollout of its own

The plan depends on the seed and the minutes alone. A fault is due when the rollout has a share of
its tokens; the seconds depend on the machine. Exit status 1 if a sample is missing, doubled or
differs from the fault-free run, if tokens were drawn twice beyond the chunks in flight, or if a
fault did not happen.
"""

import argparse
import json
import logging
import secrets
import sys
import time
from pathlib import Path

from seer_sgl import event_loop

from . import plan
from .rolling import ENGINES, stage
from .verdict import judge

MINUTES = 5  # of a round: each kind of fault once
PROMPTS_PER_MINUTE = 20
PROMPTS_OF_ONE = 12  # for a single fault


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="of the plan; default: drawn")
    parser.add_argument("--minutes", type=int, default=MINUTES, help="about, on two cores")
    parser.add_argument("--each", action="store_true", help="each kind in a rollout of its own")
    parser.add_argument("--only", action="append", help="kinds whose names contain one of these")
    parser.add_argument("--out", type=Path, default=Path("out/chaos"), help="folder for logs")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = secrets.randbits(32)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    problems: list[str] = []

    async def work() -> None:
        problems.extend(await run(options))

    event_loop.run(work())
    sys.exit(bool(problems))


def line(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


async def run(options: argparse.Namespace) -> list[str]:
    """Runs undisturbed and chaotic rollouts. Returns a line per broken promise."""
    line(f"seed {options.seed}; again: make chaos SEED={options.seed} MINUTES={options.minutes}")
    rounds = max(1, options.minutes // MINUTES)
    only = options.only or [""]
    kinds = [kind for kind in plan.KINDS if any(part in kind.name for part in only)]
    faults = plan.draw(options.seed, ENGINES, rounds, kinds)
    for fault in faults:
        line(f"plan: {fault}")
    plans = [[fault] for fault in faults] if options.each else [faults]
    count = PROMPTS_OF_ONE if options.each else options.minutes * PROMPTS_PER_MINUTE
    async with stage(options.out / str(options.seed)) as scene:
        prompts = scene.prompts(count)
        undisturbed = await scene.undisturbed(prompts)
        found = undisturbed.report
        line(f"undisturbed: {found['wall_s']} s, {found['response_tokens']} tokens")
        assert found["accept_length"] > 1, "engines draft"
        assert found["cached_tokens"]["storage"] > 0, "KV moves"
        problems: list[str] = []
        for number, chosen in enumerate(plans):
            tokens = found["response_tokens"]
            chaotic = await scene.chaotic(
                prompts, chosen, tokens, line, options.seed * 1000 + number
            )
            verdict = judge(undisturbed, await scene.undisturbed(chaotic.long_prompts), chaotic)
            problems += verdict.problems
            named = {"fault": chosen[0].kind.name} if options.each else {"faults": len(chosen)}
            line(json.dumps({**named, **verdict.costs}))
            for problem in verdict.problems:
                line(f"PROBLEM: {problem}")
    line(f"seed {options.seed}: {'FAILED' if problems else 'every sample once, and the same'}")
    return problems


if __name__ == "__main__":
    main()
