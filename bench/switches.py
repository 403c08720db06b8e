"""What each departure from the published settings brings, in simulation.

`python -m bench.switches --json` rolls the three workloads out under `seer`, first as published
(chunks of 8,192 tokens, engines balanced within 32 chunks in flight, requests of equal groups in
order of submission), then with one change after the other. It prints throughput in multiples of the
baseline and of the oracle, and how much of the baseline's tail is cut.
"""

import argparse
import heapq
import json
from typing import Any
from unittest import mock

from seer_sgl.scheduling import strategy
from seer_sgl.scheduling.context_aware import ContextAware
from seer_sgl.scheduling.ready import Ticket
from seer_sgl.sim.opening import SimRequest
from seer_sgl.sim.run import truth
from seer_sgl.sim.source import workload_names
from seer_sgl.sim.variants import BASELINE, ORACLE, Scenario
from seer_sgl.sim.workload import sample
from seer_sgl.types import Request

BIG, SMALL = "scheduling.chunk_tokens=8192", "scheduling.chunk_tokens=2048"
FIXED = "scheduling.max_spread=32"
DRAWS = range(1, 6)


class PublishedOrder(ContextAware):
    """Without the two rules that the paper does not have: first come first served while nothing
    is known of a group, and a request that outgrew its siblings stays where its group is."""

    def _list_alone(self, request: Request, ticket: Ticket, group: Any) -> None:
        if group.lengths.unknown:
            heapq.heappush(self._unknown, (0, request.order, ticket, request))


def measure(workload: str) -> list[dict[str, Any]]:
    """One row a change, each on top of those before."""
    best = SimRequest(workload=workload, overrides=[SMALL]).open()
    baseline, oracle = best.alone(BASELINE), best.alone(ORACLE)

    def row(
        change: str, case: Scenario, order: type[ContextAware] = ContextAware
    ) -> dict[str, Any]:
        with mock.patch.object(strategy, "ContextAware", order):
            found = case.alone("seer")
        return {
            "change": change,
            "wall_s": found.wall_s,
            "x_baseline": round(found.throughput_tok_s / baseline.throughput_tok_s, 3),
            "of_oracle": round(found.throughput_tok_s / oracle.throughput_tok_s, 3),
            "tail_cut": round(1 - found.tail_s / baseline.tail_s, 3),
            "migrations": found.migrations,
        }

    def case(*overrides: str) -> Scenario:
        return SimRequest(workload=workload, overrides=overrides).open()

    earlier = truth(sample(best.config.workload, epoch=1))
    return [
        row("as published", case(BIG, FIXED), PublishedOrder),
        row("+ chunks of 2,048", case(SMALL, FIXED), PublishedOrder),
        row("+ balance by the load of the moment", case(SMALL), PublishedOrder),
        row("+ order by own length", best),
        row(
            "+ lengths of an earlier epoch",
            Scenario(workload, best.responses, best.config, earlier),
        ),
    ]


def other_draws(workload: str) -> list[dict[str, Any]]:
    """What `seer` gains on other draws of lengths than the workload's own."""
    rows = []
    for seed in DRAWS:
        case = SimRequest(workload=workload, overrides=[f"workload.lengths.seed={seed}"]).open()
        baseline, seer = case.alone(BASELINE), case.alone("seer")
        rows.append(
            {
                "seed": seed,
                "x_baseline": round(seer.throughput_tok_s / baseline.throughput_tok_s, 3),
                "tail_cut": round(1 - seer.tail_s / baseline.tail_s, 3),
            }
        )
    return rows


def main() -> None:
    """Measure all workloads; print one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=workload_names(), help="only this one")
    parser.add_argument("--draws", action="store_true", help="instead: other draws of lengths")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    found = {}
    for workload in [options.workload] if options.workload else workload_names():
        found[workload] = (other_draws if options.draws else measure)(workload)
        for line in found[workload] if not options.json else ():
            print(workload, line, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
