"""What faults cost, simulated: `python -m bench.faults FAULTS --workload moonlight`.

It runs every policy twice, on engines that fail and on engines that do not, and prints both times.
docs/simulator.md describes the file of faults.
"""

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console

from seer_sgl.console import LEVELS, complain, log_to, open_console
from seer_sgl.driver import engine_watch, monitor
from seer_sgl.errors import SeerError
from seer_sgl.sim.opening import SimRequest
from seer_sgl.sim.variants import VARIANTS, check_variant

from .costs import costs_table, fault_cost
from .faults import read_faults


def main() -> None:
    """Simulates; every SeerError becomes one line and an exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("faults", type=Path, help="YAML of faults")
    parser.add_argument("--workload", help="moonlight, qwen2-vl-72b or kimi-k2 (configs/sim/)")
    parser.add_argument("--trace", type=Path, help="samples.jsonl of a rollout")
    parser.add_argument("--policy", help="one policy; the default compares all policies")
    parser.add_argument("--config", type=Path, help="YAML like configs/sim/")
    parser.add_argument("--set", dest="overrides", action="append", metavar="KEY=VALUE", default=[])
    parser.add_argument("--json", action="store_true", help="print only one JSON object")
    parser.add_argument("--log-level", choices=LEVELS, default="info")
    options = parser.parse_args()
    inputs = {name: getattr(options, name) for name in SimRequest.__struct_fields__}
    try:
        with log_to(open_console(), options.log_level):
            compare(SimRequest(**inputs), options.faults, options.policy, as_json=options.json)
    except SeerError as error:
        complain(str(error))
        sys.exit(error.exit_status)


def compare(request: SimRequest, faults_file: Path, policy: str | None, *, as_json: bool) -> None:
    """Prints the cost of faults under each policy, or under one."""
    if policy is not None:
        check_variant(policy)
    scenario = request.open()
    faults = read_faults(faults_file, scenario.config.engine.count)
    with _without_outages():
        costs = [fault_cost(scenario, name, faults) for name in ([policy] if policy else VARIANTS)]
    if as_json:
        policies = [msgspec.to_builtins(cost) for cost in costs]
        print(json.dumps({"workload": scenario.name, "seed": faults.seed, "policies": policies}))
    else:
        # Tables are wider than rich's default width for an output that is not a terminal.
        console = Console(highlight=False, width=None if Console().is_terminal else 140)
        console.print(costs_table(scenario.name, costs))


@contextlib.contextmanager
def _without_outages() -> Iterator[None]:
    """Keeps the reports of simulated outages from the log, unless it shows everything."""
    loggers = [monitor.logger, engine_watch.logger]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        if not logger.isEnabledFor(logging.DEBUG):
            logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


if __name__ == "__main__":
    main()
