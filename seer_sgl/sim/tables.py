"""Terminal tables of the figures, with the paper's figures beside them."""

from collections.abc import Sequence

from rich.table import Table

from .config import PaperConfig
from .outcome import Outcome, tail_cut
from .sweep import Point
from .variants import BASELINE, DESCRIPTIONS

COLUMNS = (
    "wall s",
    "tail s",
    "tok/s",
    "x baseline",
    "tail cut",
    "of oracle",
    "of bound",
    "pool GB",
    "idle",
    "preempted",
    "moved",
)


def policies_table(rows: Sequence[Outcome], baseline: Outcome, paper: PaperConfig) -> Table:
    """Returns a table with one row per policy; the paper's measurements are in brackets."""
    table = Table(title=rows[0].workload, title_justify="left", caption=_caption(paper))
    table.add_column("policy", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.policy, *_cells(row, baseline, paper))
    return table


def sweep_table(key: str, points: Sequence[Point]) -> Table:
    """Returns a table with one row per value."""
    table = Table(title=f"{points[0].outcome.workload}, {points[0].outcome.policy}")
    table.add_column(key, justify="right")
    for name in ("wall s", "tail s", "tok/s", "x baseline", "of oracle", "idle", "moved"):
        table.add_column(name, justify="right")
    best = max(points, key=lambda point: point.outcome.throughput_tok_s)
    for point in points:
        row = point.outcome
        table.add_row(
            str(point.value),
            f"{row.wall_s:,.0f}",
            f"{row.tail_s:,.0f}",
            f"{row.throughput_tok_s:,.0f}",
            f"{row.ratio_to_baseline:.2f}",
            _percent(row.ratio_to_oracle),
            _percent(row.idle_fraction),
            f"{row.migrations:,}",
            style="bold" if point is best else None,
        )
    return table


def _cells(row: Outcome, baseline: Outcome, paper: PaperConfig) -> list[str]:
    is_baseline = row.policy == BASELINE
    published = paper.rows.get(row.policy)
    throughput = published.throughput if published else None
    tail = published.tail if published else None
    cut = tail_cut(row, baseline)
    return [
        f"{row.wall_s:,.0f}{_bracket(paper.wall_s if is_baseline else None, ',.0f')}",
        f"{row.tail_s:,.0f}{_bracket(paper.tail_s if is_baseline else None, ',.0f')}",
        f"{row.throughput_tok_s:,.0f}",
        f"{row.ratio_to_baseline:.2f}{_bracket(throughput, '.2f')}",
        "" if is_baseline else f"{cut:.0%}{_bracket(None if tail is None else 1 - tail, '.0%')}",
        _percent(row.ratio_to_oracle),
        _percent(row.share_of_bound),
        f"{row.pool_peak_gb or 0:,.0f}",
        f"{row.idle_fraction:.0%}{_bracket(paper.idle_fraction if is_baseline else None, '.0%')}",
        f"{row.preemptions:,}{_bracket(paper.preemptions if is_baseline else None, ',')}",
        f"{row.migrations:,}",
    ]


def _caption(paper: PaperConfig) -> str:
    explained = "\n".join(f"{name}: {text}" for name, text in DESCRIPTIONS.items())
    return explained if paper.wall_s is None else f"In brackets: the paper.\n{explained}"


def _bracket(value: float | None, form: str) -> str:
    return "" if value is None else f" [{value:{form}}]"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
