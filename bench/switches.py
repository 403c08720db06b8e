"""Simulates the gain of each change from the published settings.

`python -m bench.switches --json` rolls out the three workloads, first by the paper's rules:
chunks of 8,192 tokens (about 8,000 in the paper), engines balanced within 32 chunks in
flight, requests of equal groups in order of submission. Then it adds one change at a time. It
prints throughput as a multiple of the baseline's and of the oracle's, and the reduction of the
baseline's tail.
"""

import argparse
import json
from typing import Any
from unittest import mock

from seer_sgl.scheduling import strategy
from seer_sgl.scheduling.context_aware import ContextAware
from seer_sgl.sim.opening import SimRequest
from seer_sgl.sim.outcome import tail_cut
from seer_sgl.sim.simulate import truth
from seer_sgl.sim.source import workload_names
from seer_sgl.sim.variants import BASELINE, ORACLE, Scenario
from seer_sgl.sim.workload import sample
from seer_sgl.types import Request

BIG, SMALL = "scheduling.chunk_tokens=8192", "scheduling.chunk_tokens=2048"
FIXED = "scheduling.max_spread=32"


class PublishedOrder(ContextAware):
    """The paper's order, without our two rules. A group without a known length goes first come,
    first served; a request that is longer than its siblings stays in its group's place."""

    def _list_alone(self, request: Request, group: Any) -> None:
        if group.lengths.unknown:
            self._unknown.put(request, request.order)


def measure(workload: str) -> list[dict[str, Any]]:
    """Returns one row per change, each on top of the earlier ones."""
    best = SimRequest(workload=workload, overrides=[SMALL]).open()
    baseline, oracle = best.alone(BASELINE), best.alone(ORACLE)

    def row(
        change: str, scenario: Scenario, order: type[ContextAware] | None = None
    ) -> dict[str, Any]:
        with mock.patch.object(strategy, "ContextAware", order):
            result = scenario.alone("seer" if order is None else "seer_published")
        return {
            "change": change,
            "wall_s": result.wall_s,
            "x_baseline": round(result.throughput_tok_s / baseline.throughput_tok_s, 3),
            "of_oracle": round(result.throughput_tok_s / oracle.throughput_tok_s, 3),
            "tail_cut": round(tail_cut(result, baseline), 3),
            "migrations": result.migrations,
        }

    def scenario(*overrides: str) -> Scenario:
        return SimRequest(workload=workload, overrides=overrides).open()

    earlier = truth(sample(best.config.workload, epoch=1))
    return [
        row("as published", scenario(BIG, FIXED), PublishedOrder),
        row("+ chunks of 2,048", scenario(SMALL, FIXED), PublishedOrder),
        row("+ balance by the current load", scenario(SMALL), PublishedOrder),
        row("+ order by own length", best, ContextAware),
        row("+ most tokens possible first", best),
        row(
            "+ lengths of an earlier epoch",
            Scenario(workload, best.responses, best.config, earlier),
        ),
    ]


def main() -> None:
    """Measures all workloads; prints one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=workload_names(), help="only this one")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    tables = {}
    for workload in [options.workload] if options.workload else workload_names():
        tables[workload] = measure(workload)
        for line in tables[workload] if not options.json else ():
            print(workload, line, flush=True)
    print(json.dumps(tables))


if __name__ == "__main__":
    main()
