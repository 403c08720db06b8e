"""The same workload with several draws of its lengths: means and ranges instead of one draw."""

import logging
import statistics
from collections.abc import Sequence

import msgspec
from rich.table import Table

from .opening import SimRequest
from .outcome import Outcome, tail_cut
from .variants import BASELINE

logger = logging.getLogger(__name__)
TAKEN = ("ratio_to_baseline", "ratio_to_oracle", "share_of_bound", "accept_length", "pool_peak_gb")


class DrawnFigure(msgspec.Struct, frozen=True):
    """A figure over the draws."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "DrawnFigure | None":
        """Returns the spread of a figure; None if it is not known of some draw."""
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return cls(*(round(part(known), 4) for part in (statistics.mean, min, max)))

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.least:.2f} to {self.most:.2f})"


class DrawnPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a policy over the draws, as in Outcome; `tail_cut` of the baseline's tail.
    None: not known of that policy."""

    policy: str
    ratio_to_baseline: DrawnFigure | None
    tail_cut: DrawnFigure | None
    ratio_to_oracle: DrawnFigure | None
    share_of_bound: DrawnFigure | None
    accept_length: DrawnFigure | None
    pool_peak_gb: DrawnFigure | None


def drawn(request: SimRequest, policies: Sequence[str], seeds: Sequence[int]) -> list[DrawnPolicy]:
    """Runs policies, each with the lengths of every seed, and logs each draw, as one of a large
    workload takes minutes. Raises ConfigError like `open`."""
    rows: dict[str, list[Outcome]] = {policy: [] for policy in policies}
    baselines = []
    for number, seed in enumerate(seeds, start=1):
        scenario = request.open(f"workload.lengths.seed={seed}")
        baselines.append(scenario.alone(BASELINE))
        for policy in policies:
            rows[policy].append(scenario.outcome(policy))
        ratios = ", ".join(f"{name} {found[-1].ratio_to_baseline}" for name, found in rows.items())
        logger.info("draw %d of %d, seed %d, x baseline: %s", number, len(seeds), seed, ratios)
    return [
        DrawnPolicy(
            policy=policy,
            tail_cut=DrawnFigure.of(list(map(tail_cut, found, baselines))),
            **{name: DrawnFigure.of([getattr(row, name) for row in found]) for name in TAKEN},
        )
        for policy, found in rows.items()
    ]


def draws_table(workload: str, seeds: Sequence[int], rows: Sequence[DrawnPolicy]) -> Table:
    """Returns a table with one row per policy."""
    table = Table(
        title=f"{workload}, {len(seeds)} draws of lengths: mean (least to most)",
        title_justify="left",
    )
    table.add_column("policy", no_wrap=True)
    for name in ("x baseline", "tail cut", "of oracle", "of bound", "accepted", "pool GB"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        ratios = row.ratio_to_baseline, row.tail_cut, row.ratio_to_oracle, row.share_of_bound
        figures = *ratios, row.accept_length, row.pool_peak_gb
        table.add_row(row.policy, *("" if figure is None else str(figure) for figure in figures))
    return table
