"""The benchmark as docs/benchmark.md reports it: `python -m bench.full --config C --out DIR`.

It is `seer-sgl bench`, whose options it has, and adds to the report in DIR: SGLang's own router as
an arm (`--router`), the simulator's prediction (`--sim FILE`), rollouts in a row (`--soak N`), and
the picture of the lanes.
"""

import argparse
from pathlib import Path

from seer_sgl.benchmark.config import load_from_options
from seer_sgl.cli import REPEATED, cli, exiting
from seer_sgl.console import log_to, open_console
from seer_sgl.event_loop import run
from seer_sgl.sim.source import load_settings

from .runner import FullRunner, run_full

PROGRAM = "python -m bench.full"


def arguments() -> argparse.ArgumentParser:
    """Returns the parser of the command line; what it does not know is for `seer-sgl bench`."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=(__doc__ or "").splitlines()[0],
        epilog="All other options are those of `seer-sgl bench`.",
        allow_abbrev=False,
    )
    parser.add_argument("--router", action="store_true", help="run arm `router`, after the first")
    parser.add_argument("--sim", type=Path, help="YAML like configs/sim/: predict the rollouts")
    parser.add_argument("--soak", type=int, default=0, help="rollouts of `seer` in a row, last")
    return parser


def main() -> None:
    """Measures, and ends like `seer-sgl`."""
    own, rest = arguments().parse_known_args()
    with exiting():
        given = cli.commands["bench"].make_context(PROGRAM, rest).params
        out, log_level = given.pop("out"), given.pop("log_level")
        console = open_console(wide=True)
        with log_to(console, log_level, once=REPEATED):
            sim = None if own.sim is None else load_settings(own.sim)
            runner = FullRunner(
                load_from_options(**given), out, sim=sim, rollouts=own.soak, router=own.router
            )
            run(run_full(runner, console))


if __name__ == "__main__":
    main()
