"""The tables that an audit prints.

Names from files and servers are `Text`, in which rich reads neither markup nor emoji codes.
"""

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from .audit_report import PREFILL_DECODE, LargeDifference, PassReport, SelfComparison
from .log_prob_figures import LogProbFigures

FIGURES = ("mean", "p99", "max", "KL", "clipped")


def passes_table(passes: Sequence[PassReport], title: str) -> Table:
    """Returns a table with a row per pass: what the server computes against the file."""
    table = _table(title, "pass", ("samples", "tokens", "cached", "same", "near ties"))
    for report in passes:
        same = "" if report.same_samples is None else f"{report.same_samples} of {report.samples}"
        ties = f"{report.near_ties} of {report.changed}" if report.changed else ""
        counts = (report.samples, report.tokens, report.cached_tokens)
        table.add_row(
            report.name, *(f"{count:,}" for count in counts), same, ties, *_cells(report.log_probs)
        )
    return table


def itself_table(itself: Sequence[SelfComparison]) -> Table:
    """Returns a table with a row per two passes: the server against itself."""
    table = _table("the server against itself", "passes", ("varies", "same"))
    for pair in itself:
        same = f"{pair.samples - pair.changed} of {pair.samples}"
        if pair.varies == PREFILL_DECODE:
            same = ""
        cells = _cells(pair.log_probs)
        table.add_row(f"{pair.first} / {pair.second}", pair.varies, same, *cells)
    return table


def parts_table(parts: Mapping[str, Mapping[str, LogProbFigures]]) -> Table:
    """Returns a table of the prefill's differences, by part of the responses."""
    table = _table("prefill, alone: by part", "part", ("", "tokens"))
    for kind, of_kind in parts.items():
        for name, figures in of_kind.items():
            table.add_row(kind, Text(name), f"{figures.tokens:,}", *_cells(figures))
    return table


def difference_lines(passes: Sequence[PassReport]) -> Iterator[str]:
    """Yields a line for each first difference, equal ones of several passes once."""
    seen: dict[tuple[str, int, int], list[str]] = {}
    lines: dict[tuple[str, int, int], str] = {}
    for report in passes:
        for first in report.differences:
            key = (first.sample, first.position, first.generated)
            tie = {None: "gap unknown", True: "near tie", False: "no near tie"}[first.near_tie]
            gap = "" if first.gap is None else f", gap {first.gap:.3g}"
            lines[key] = (
                f"{first.sample}, token {first.position}: file {first.recorded} "
                f"({_number(first.recorded_log_prob)}), server {first.generated} "
                f"({first.generated_log_prob:.4f}), which gives the file's token "
                f"{_number(first.server_log_prob)}{gap}: {tie}"
            )
            seen.setdefault(key, []).append(report.name)
    for key, line in lines.items():
        yield f"{line} ({'; '.join(seen[key])})"


def largest_table(largest: Sequence[LargeDifference]) -> Table:
    """Returns a table of the tokens with the largest differences of log probability."""
    table = _table(
        "largest differences, of the pass that is closest", "sample", ("token", "id"), figures=()
    )
    for name in ("file", "server", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("parts")
    for difference in largest:
        parts = ", ".join(part for kind, part in difference.parts.items() if kind != "position")
        table.add_row(
            Text(difference.sample),
            str(difference.position),
            str(difference.token),
            f"{difference.recorded:.6f}",
            f"{difference.server:.6f}",
            f"{difference.server - difference.recorded:+.2e}",
            Text(parts),
        )
    return table


def _table(
    title: str, first: str, counts: Sequence[str], figures: Sequence[str] = FIGURES
) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for name in (*counts, *figures):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells(figures: LogProbFigures | None) -> list[str]:
    if figures is None:
        return [""] * len(FIGURES)
    small = (figures.mean, figures.p99, figures.max, figures.kl)
    return [*(f"{value:.1e}" for value in small), f"{figures.clipped:.2%}"]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
