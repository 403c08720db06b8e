"""`seer-sgl simulate`: the simulated time of a rollout by policy and settings."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from seer_sgl.errors import ConfigError
from seer_sgl.files import explained
from seer_sgl.report.style import can_draw

from .opening import SimRequest
from .plots import draw_policies, draw_sweeps
from .sweep import Point, parse_sweep
from .tables import policies_table, sweep_table
from .variants import VARIANTS, Scenario, check_variant

SWEPT = "seer"  # the policy of a sweep without --policy
# The values that --out sweeps.
CHUNK_SIZES = (512, 1024, 2048, 4096, 8192, 16384, 32768)
ENGINE_COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024)
GROUP_SIZES = (2, 4, 8, 16, 32)


def run_simulation(
    sim_request: SimRequest, policy: str | None, sweep: str | None, as_json: bool, out: Path | None
) -> None:
    """Prints the result; with `out`, also writes JSON and plots into that folder.

    Raises ConfigError if the input cannot be simulated.
    """
    if policy is not None:
        check_variant(policy)
    if out is not None:
        _make_folder(out)
    # Tables are wider than rich's default width for an output that is not a terminal.
    console = Console(highlight=False, width=None if Console().is_terminal else 140)
    if sweep is not None:
        key, values = parse_sweep(sweep)
        points = _points(sim_request, policy or SWEPT, key, values)
        if not as_json:
            console.print(sweep_table(key, points))
        answer = _swept(key, points)
        if out is not None:
            _write(answer, out)
            if can_draw():
                draw_sweeps({key: points}, out / "sweep")
    else:
        scenario = sim_request.open()
        answer = _compared(scenario, policy, None if as_json else console)
        if out is not None:
            _write(answer, out)
            if can_draw():
                draw_policies(scenario, out)
                draw_sweeps(dict(_usual_sweeps(sim_request, scenario)), out / "sweeps")
    if as_json:
        print(json.dumps(answer))


def _compared(scenario: Scenario, policy: str | None, console: Console | None) -> dict[str, Any]:
    rows = [scenario.outcome(name) for name in ([policy] if policy else VARIANTS)]
    if console is not None:
        console.print(policies_table(rows, scenario.outcome_of_baseline(), scenario.config.paper))
    if policy is not None:
        return msgspec.structs.asdict(rows[0])
    return {
        "workload": scenario.name,
        "policies": [msgspec.structs.asdict(row) for row in rows],
        "paper": msgspec.to_builtins(scenario.config.paper),
    }


def _swept(key: str, points: Sequence[Point]) -> dict[str, Any]:
    return {
        "workload": points[0].outcome.workload,
        "policy": points[0].outcome.policy,
        "key": key,
        "points": [msgspec.to_builtins(point) for point in points],
    }


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


def _write(answer: dict[str, Any], out: Path) -> None:
    with explained(out / "report.json"):
        (out / "report.json").write_text(json.dumps(answer, indent=2) + "\n")


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error
