"""`seer-sgl simulate`: what a rollout takes, under which policy and with which settings."""

import json
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from seer_sgl.errors import ConfigError
from seer_sgl.rollout.samples import explained

from .opening import Question
from .plots import draw_all
from .sweep import Point, parse_sweep
from .tables import policies_table, sweep_table
from .variants import VARIANTS, Case, check_variant

SWEPT = "seer"  # the policy of a sweep, unless another is asked for


def run_simulation(
    question: Question, policy: str | None, sweep: str | None, as_json: bool, out: Path | None
) -> None:
    """Answer on the standard output; with `out`, JSON and plots there as well.

    Raises ConfigError for input that cannot be simulated.
    """
    if policy is not None:
        check_variant(policy)
    if out is not None:
        _make_folder(out)
    # Tables are wider than a terminal that is none.
    console = Console(highlight=False, width=None if Console().is_terminal else 140)
    if sweep is not None:
        answer = _swept(question, policy or SWEPT, sweep, console if not as_json else None)
    else:
        case = question.open()
        answer = _compared(case, policy, console if not as_json else None)
        if out is not None:
            draw_all(question, case, out)
    if as_json:
        print(json.dumps(answer))
    if out is not None:
        with explained(out / "report.json"):
            (out / "report.json").write_text(json.dumps(answer, indent=2) + "\n")


def _compared(case: Case, policy: str | None, console: Console | None) -> dict[str, Any]:
    rows = [case.outcome(name) for name in ([policy] if policy else VARIANTS)]
    if console is not None:
        console.print(policies_table(rows, case.outcome_of_baseline(), case.config.paper))
    if policy is not None:
        return msgspec.structs.asdict(rows[0])
    return {
        "workload": case.name,
        "policies": [msgspec.structs.asdict(row) for row in rows],
        "paper": msgspec.to_builtins(case.config.paper),
    }


def _swept(question: Question, policy: str, sweep: str, console: Console | None) -> dict[str, Any]:
    key, values = parse_sweep(sweep)
    points = []
    for value in values:
        case = question.open(f"{key}={json.dumps(value)}")
        points.append(Point(value=value, outcome=case.outcome(policy)))
    if console is not None:
        console.print(sweep_table(key, points))
    return {
        "workload": points[0].outcome.workload,
        "policy": policy,
        "key": key,
        "points": [msgspec.to_builtins(point) for point in points],
    }


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
