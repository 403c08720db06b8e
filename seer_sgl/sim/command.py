"""`seer-sgl simulate`: the simulated time of a rollout by policy and settings."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from seer_sgl.errors import ConfigError
from seer_sgl.files import make_out_folder, refuse_rollout, write_json
from seer_sgl.report.style import can_draw

from .draws import drawn, draws_table
from .opening import SimRequest
from .plots import draw_policies, draw_sweeps
from .sweep import Point, parse_sweep
from .tables import policies_table, sweep_table
from .variants import BASELINE, VARIANTS, Scenario, check_variant

Draw = Callable[[Path], object]  # draws the pictures of a result into a folder
SWEPT = "seer"  # the policy of a sweep without --policy
# The values that --out sweeps.
CHUNK_SIZES = (512, 1024, 2048, 4096, 8192, 16384, 32768)
ENGINE_COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024)
GROUP_SIZES = (2, 4, 8, 16, 32)


def run_simulation(
    sim_request: SimRequest,
    *,
    policy: str | None,
    sweep: str | None,
    draws: int | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Prints the result; with `out`, also writes JSON and plots into that folder.

    Raises ConfigError if the input cannot be simulated.
    """
    if policy is not None:
        check_variant(policy)
    if draws is not None:
        _check_draws(draws, sim_request, sweep)
    if out is not None:
        refuse_rollout(out)
        make_out_folder(out)
    # Tables are wider than rich's default width for an output that is not a terminal.
    wide = Console(highlight=False, width=None if Console().is_terminal else 140)
    console = None if as_json else wide
    draw: Draw | None = None
    if draws is not None:
        answer = _drawn(sim_request, policy, draws, console)
    elif sweep is not None:
        answer, draw = _swept(sim_request, policy or SWEPT, sweep, console)
    else:
        answer, draw = _compared(sim_request, policy, console)
    if out is not None:
        write_json(out / "report.json", answer)
        if draw is not None and can_draw():
            draw(out)
    if as_json:
        print(json.dumps(answer))


def _check_draws(draws: int, sim_request: SimRequest, sweep: str | None) -> None:
    if draws < 2:
        raise ConfigError(f"--draws {draws}: expected at least 2")
    if sim_request.trace is not None:
        raise ConfigError("--draws: the lengths of --trace are not drawn")
    if sweep is not None:
        raise ConfigError("--draws: not together with --sweep")


def _drawn(
    sim_request: SimRequest, policy: str | None, draws: int, console: Console | None
) -> dict[str, Any]:
    seeds = range(1, draws + 1)
    rows = drawn(sim_request, [policy] if policy else list(VARIANTS), seeds)
    name = sim_request.workload or ""
    if console is not None:
        console.print(draws_table(name, seeds, rows))
    policies = [msgspec.to_builtins(row) for row in rows]
    return {"workload": name, "seeds": list(seeds), "policies": policies}


def _compared(
    sim_request: SimRequest, policy: str | None, console: Console | None
) -> tuple[dict[str, Any], Draw]:
    scenario = sim_request.open()
    if sim_request.trace is not None and policy is None:
        raise ConfigError(
            "--trace: give --policy or --sweep; `seer-sgl what-if FILE` compares the orders"
        )
    rows = [scenario.outcome(name) for name in ([policy] if policy else VARIANTS)]
    if console is not None:
        console.print(policies_table(rows, scenario.outcome(BASELINE), scenario.config.paper))

    def draw(out: Path) -> None:
        draw_policies(scenario, out)
        draw_sweeps(dict(_usual_sweeps(sim_request, scenario)), out / "sweeps")

    if policy is not None:
        return msgspec.structs.asdict(rows[0]), draw
    answer = {
        "workload": scenario.name,
        "policies": [msgspec.structs.asdict(row) for row in rows],
        "paper": msgspec.to_builtins(scenario.config.paper),
    }
    return answer, draw


def _swept(
    sim_request: SimRequest, policy: str, sweep: str, console: Console | None
) -> tuple[dict[str, Any], Draw]:
    key, values = parse_sweep(sweep)
    points = _points(sim_request, policy, key, values)
    if console is not None:
        console.print(sweep_table(key, points))
    answer = {
        "workload": points[0].outcome.workload,
        "policy": points[0].outcome.policy,
        "key": key,
        "points": [msgspec.to_builtins(point) for point in points],
    }
    return answer, lambda out: draw_sweeps({key: points}, out / "sweep")


def _points(
    sim_request: SimRequest,
    policy: str,
    key: str,
    values: Sequence[object],
    *also: str,
    with_oracle: bool = True,
) -> list[Point]:
    """Returns the policy's figures at each value, with ratios to baseline and oracle there."""
    points = []
    for value in values:
        scenario = sim_request.open(*also, f"{key}={json.dumps(value)}")
        points.append(Point(value=value, outcome=scenario.outcome(policy, with_oracle=with_oracle)))
    return points


def _usual_sweeps(sim_request: SimRequest, scenario: Scenario) -> Iterator[tuple[str, list[Point]]]:
    """Yields sweeps of chunk size and number of engines; for a named workload, also of group
    size."""

    def quick(key: str, values: Sequence[object], *also: str) -> list[Point]:
        return _points(sim_request, SWEPT, key, values, *also, with_oracle=False)

    yield "chunk_tokens", quick("scheduling.chunk_tokens", CHUNK_SIZES)
    yield "engines", quick("engine.count", ENGINE_COUNTS)
    if sim_request.workload is not None:
        workload, key = scenario.config.workload, "workload.n_samples_per_prompt"
        requests = workload.groups * workload.n_samples_per_prompt
        sizes = [n for n in GROUP_SIZES if n <= requests]
        points = [quick(key, [n], f"workload.groups={requests // n}") for n in sizes]
        yield "n_samples_per_prompt", [point for (point,) in points]
