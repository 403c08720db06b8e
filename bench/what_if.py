"""What `seer-sgl what-if` answers on the lengths of the published rollouts, and on short even ones.

`python -m bench.what_if [--out bench/results/2026-11-26-what-if] [NAME...]` writes the answers as
JSON. The lengths of a published rollout are drawn as configs/sim/NAME.yaml says, for a quarter of
its prompts, written as a CSV file, and read from it; the engines are a quarter of those of that
file, so that an answer takes minutes. `short-even` has 256 groups of 8 responses of about 300
tokens on eight engines. `reasoner` has the lengths of the CPU benchmark, a file per seed, on
engines like its own.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.gains import RESULTS
from bench.policies import CPU_ENGINES, CPU_LENGTHS, CPU_LIMIT
from seer_sgl.sim.source import load_settings, workload_file, workload_names
from seer_sgl.sim.workload import sample
from seer_sgl.traces.trace import Responses
from seer_sgl.types import token_array
from seer_sgl.what_if.command import WhatIf, WhatIfRequest

FOLDER = RESULTS / "2026-11-26-what-if"
SHORT, REASONER = "short-even", "reasoner"
PART = 4  # of prompts and engines
PRICE, DRAWS = 2.0, 2
SEEDS = range(1, 13)


def short_even() -> list[Responses]:
    """Returns short responses of nearly one length."""
    draw = random.Random(1)
    return [
        Responses(
            str(group), token_array([group]) * 64, [round(draw.gauss(300, 25)) for _ in range(8)]
        )
        for group in range(256)
    ]


def write_csv(groups: Sequence[Responses], path: Path) -> None:
    """Writes a trace with the columns group, length and prompt_tokens."""
    rows = ["group,length,prompt_tokens"]
    for group in groups:
        rows += [f"{group.group_id},{length},{len(group.prompt_ids)}" for length in group.lengths]
    path.write_text("\n".join(rows) + "\n")


def ask(name: str, out: Path) -> None:
    """Writes the answer about one set of lengths."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / f"{name}.csv"
        if name == SHORT:
            write_csv(short_even(), trace)
            request = WhatIfRequest(traces=[trace], price=PRICE, draws=DRAWS, out=Path(folder))
        elif name == REASONER:
            engine = msgspec.to_builtins(CPU_ENGINES)
            request = WhatIfRequest(
                traces=[CPU_LENGTHS / f"lengths-{seed}.jsonl" for seed in SEEDS],
                overrides=[
                    *(f"engine.{key}={json.dumps(value)}" for key, value in engine.items()),
                    f"workload.lengths.max={CPU_LIMIT}",
                ],
                engines=CPU_ENGINES.count,
                out=Path(folder),
            )
        else:
            whole = load_settings(workload_file(name))
            groups = f"workload.groups={whole.workload.groups // PART}"
            config = load_settings(workload_file(name), overrides=[groups])
            write_csv(sample(config.workload), trace)
            request = WhatIfRequest(
                traces=[trace],
                model=name,
                price=PRICE,
                draws=DRAWS,
                engines=config.engine.count // PART,
                out=Path(folder),
            )
        asked = WhatIf(request)
        asked.ask()
        asked.show(Console(), as_json=False)
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text((Path(folder) / "what-if.json").read_text())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Ask what-if about known lengths.")
    parser.add_argument("names", nargs="*", default=[SHORT, REASONER, *workload_names()])
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    for name in arguments.names:
        ask(name, arguments.out)


if __name__ == "__main__":
    main()
