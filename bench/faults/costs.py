"""What faults cost: the figures of a rollout with faults beside the same rollout without."""

from collections.abc import Sequence

import msgspec
from rich.table import Table

from seer_sgl.config import with_values
from seer_sgl.errors import RolloutError
from seer_sgl.report.report import report
from seer_sgl.sim.outcome import Outcome, outcome
from seer_sgl.sim.variants import VARIANTS, Scenario

from .faulted import Faulted, simulate_faulted
from .faults import FaultsConfig

OUTAGES = ("death", "hang", "cut", "reads")
COLUMNS = (
    "wall s",
    "with faults",
    "",
    "tail s",
    "with faults",
    "outages",
    "lost chunks",
    "wasted tokens",
    "prefilled more",
    "groups given up",
)


class FaultCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of faults under one policy. `faults`: how many happened, by kind; `wasted_tokens`:
    decoded, and in no sample; `prefilled_tokens`: computed input tokens beyond those of the
    rollout without faults."""

    policy: str
    undisturbed: Outcome
    disturbed: Outcome
    faults: dict[str, int]
    lost_chunks: int
    wasted_tokens: int
    prefilled_tokens: int
    given_up_groups: int


def fault_cost(scenario: Scenario, variant: str, faults: FaultsConfig) -> FaultCost:
    """Runs the variant with and without the faults. Raises RolloutError if the rollout fails."""
    timeouts = {"stall_timeout_s", "recovery_timeout_s"}
    undisturbed = FaultsConfig(**{name: getattr(faults, name) for name in timeouts})
    before, after = _faulted(scenario, variant, undisturbed), _faulted(scenario, variant, faults)
    figures = report(after.record)
    return FaultCost(
        policy=variant,
        undisturbed=outcome(scenario.name, variant, before.record),
        disturbed=outcome(scenario.name, variant, after.record),
        faults=after.counts,
        lost_chunks=figures["lost_chunks"],
        wasted_tokens=after.wasted_tokens,
        prefilled_tokens=after.prefilled_tokens - before.prefilled_tokens,
        given_up_groups=figures["unfinished_groups"],
    )


def _faulted(scenario: Scenario, variant: str, faults: FaultsConfig) -> Faulted:
    config = with_values(scenario.config, VARIANTS[variant])
    try:
        return simulate_faulted(scenario.responses, config, faults, scenario.prior)
    except RolloutError as error:
        raise RolloutError(f"{variant}: {error}") from error


def costs_table(workload: str, costs: Sequence[FaultCost]) -> Table:
    """Returns a table with one row per policy."""
    table = Table(title=workload, title_justify="left", caption=_happened(costs))
    table.add_column("policy", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for cost in costs:
        undisturbed, hit = cost.undisturbed, cost.disturbed
        table.add_row(
            cost.policy,
            f"{undisturbed.wall_s:,.0f}",
            f"{hit.wall_s:,.0f}",
            f"{hit.wall_s / undisturbed.wall_s - 1:+.1%}" if undisturbed.wall_s else "",
            f"{undisturbed.tail_s:,.0f}",
            f"{hit.tail_s:,.0f}",
            f"{sum(cost.faults.get(kind, 0) for kind in OUTAGES):,}",
            f"{cost.lost_chunks:,}",
            f"{cost.wasted_tokens:,}",
            f"{cost.prefilled_tokens:,}",
            f"{cost.given_up_groups:,}",
        )
    return table


def _happened(costs: Sequence[FaultCost]) -> str:
    """Returns the faults of each policy's rollout in words; a longer one has more."""
    return "\n".join(
        f"{cost.policy}: " + (", ".join(f"{n:,} {kind}" for kind, n in cost.faults.items()) or "-")
        for cost in costs
    )
