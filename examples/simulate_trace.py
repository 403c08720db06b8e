"""What would another policy, chunk size or fleet change? Simulated on the lengths of a rollout.

    python -m examples.simulate_trace out/samples.jsonl --engines 8

No engine is needed. Prints total and tail time of each policy, and of the default policy with other
chunk sizes. The engine model is an 8B model on one H800 per engine unless you describe your own
under `engine` (docs/simulator.md).
"""

import argparse
from pathlib import Path

from seer_sgl.sim.opening import SimRequest

POLICIES = ("group_round_robin", "request_round_robin", "fcfs", "seer")
CHUNKS = (512, 2048, 8192)


def main(trace: Path, engines: int) -> None:
    """Prints a line per policy and per chunk size."""
    request = SimRequest(trace=trace, overrides=[f"engine.count={engines}"])
    scenario = request.open()
    for policy in POLICIES:
        outcome = scenario.outcome(policy, with_oracle=False)
        print(f"{policy:20} {outcome.wall_s:8.1f} s, tail {outcome.tail_s:6.1f} s")
    for tokens in CHUNKS:
        outcome = request.open(f"scheduling.chunk_tokens={tokens}").outcome("seer")
        print(f"{f'seer, chunks of {tokens}':20} {outcome.wall_s:8.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--engines", type=int, default=8)
    arguments = parser.parse_args()
    main(arguments.trace, arguments.engines)
