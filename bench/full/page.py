"""What report.md has beyond the page of `seer-sgl bench`: lanes, prediction and soak."""

from collections.abc import Sequence
from typing import Any

from seer_sgl.benchmark.tables import markdown, table_of

LANES = "![Requests and KV cache of each engine over time](lanes.png)"
PREDICTED = (
    "The same lengths under the same policies in the engine model of `seer-sgl simulate`, with "
    "{} measured on these servers {}. Means over the {}."
)
SOAK = (
    "Consecutive rollouts of arm `seer`; after each, the weights are loaded again under another "
    "name. `kv_hit_share`: share of continuations' input tokens that were not recomputed."
)


def full_page(report: dict[str, Any], *, lanes: bool) -> str:
    """Returns the text of report.md. `lanes`: whether there is a picture of the lanes."""
    parts = [markdown(report).rstrip("\n")]
    if lanes:
        parts += ["## Lanes", LANES]
    if report.get("predicted"):  # of the full benchmark
        parts += ["## Simulated", _predicted(report["predicted"])]
    if report.get("soak"):
        parts += ["## Soak", SOAK, _rows(report["soak"]), _drift(report["soak_drift"])]
        parts += ["![Soak](soak.png)"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _predicted(predicted: dict[str, Any]) -> str:
    now = "constants" in predicted  # reports of earlier versions have no steps either
    around = any(isinstance(one, list) for one in predicted.get("constants", {}).values())
    each = "before and after each round" if around else "before each round"
    first = "before the first round"
    words = ("costs", each, "rounds") if now else ("step times", first, "seeds")
    head = ["arm", "total s", "predicted", "error", "tail s", "predicted"]
    rows = [
        [
            name,
            f"{one['wall_s']:.1f}",
            f"{one['predicted_wall_s']:.1f}",
            f"{one['error']:+.0%}",
            f"{one['tail_s']:.1f}",
            f"{one['predicted_tail_s']:.1f}",
            *(_steps(one) if now else ()),
        ]
        for name, one in predicted["arms"].items()
    ]
    table = table_of([*head, *(("steps", "predicted") if now else ())], rows)
    return f"{PREDICTED.format(*words)}\n\n{table}"


def _steps(arm: dict[str, Any]) -> list[str]:
    counted = arm["forward_steps"]
    return ["" if counted is None else f"{counted:,.0f}", f"{arm['predicted_forward_steps']:,.0f}"]


def _rows(rows: Sequence[dict[str, Any]]) -> str:
    return table_of([*rows[0]], [[str(value) for value in row.values()] for row in rows])


def _drift(slopes: dict[str, float]) -> str:
    listed = ", ".join(f"{name} {slope:+.3g}" for name, slope in slopes.items())
    return f"Slopes per rollout, from the third rollout on: {listed}." if listed else ""
