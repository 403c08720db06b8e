"""Measures which combinations return identical samples on this machine.

`python -m bench.gpu.exact OUT.json --setups triton-float32,fa3-bfloat16` rolls the same seeded
requests of the reasoner out in many ways: undivided and divided, on one engine and across engines,
with and without a KV pool, drafting chains and trees. Each is compared with the first rollout on
plain engines, the first with `engines.exact`, and the first on its own engines: the share of
identical samples, the first token that differs, the gap of the log probabilities before it.
OUT.json is complete after each rollout. Setups that end in `-greedy` run without deterministic
inference, where SGLang ignores seeds. `torch_native-float32` needs no GPU.
"""

import argparse
import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from seer_sgl import Rollout
from seer_sgl.config import parse, with_values
from seer_sgl.engine.fleet import Fleet, open_fleet
from seer_sgl.errors import SeerError
from seer_sgl.kvpool.backend import resolved

from .combinations import (
    ON_CPU,
    PLAIN,
    REASONER,
    WAYS,
    Servers,
    Setup,
    Way,
    Work,
    config,
    kinds,
    placement,
)
from .machine import require_gpu, write_json
from .shares import Response, Responses, difference

PROGRAM = "bench.gpu.exact"
COMPARED = {"as_plain": "plain", "as_exact": "exact", "as_first": "its first"}
COUNTS = ("plain_steps", "verified_steps", "drafted_by_position", "accepted_by_position")


class Rolled(NamedTuple):
    """A rollout: its samples, its report, and its duration in seconds."""

    way: Way
    samples: Responses
    report: Any
    seconds: float


class Rows:
    """The results, in a file that is complete after each row. Logs go beside it."""

    def __init__(self, out: Path, work: Work) -> None:
        self._out = out
        self._content: dict[str, Any] = {"work": work._asdict(), "rows": []}

    def add(self, setup: Setup, servers: Servers, **figures: Any) -> None:
        """Adds a row, writes the file, and prints the row in one line."""
        row = {"setup": setup.name, "servers": servers.name, **figures}
        self._content["rows"].append(row)
        write_json(self._out, self._content)
        print(line(row), flush=True)

    def logs(self, setup: Setup, servers: Servers) -> Path:
        """Returns the folder for the logs of these engines."""
        return self._out.with_suffix("") / setup.name / servers.name


def line(row: Mapping[str, Any]) -> str:
    """Returns a row for people: a start, an error, or the shares of identical samples."""
    engines = f"{row['setup']}, {row['servers']}"
    if "start_s" in row:
        return f"{engines}: up after {row['start_s']:.0f} s"
    if "error" in row:
        return f"{engines}: {row['error'].splitlines()[0]}"
    shares = [
        f"{row[key]['identical']}/{row[key]['samples']} as {what}"
        for key, what in COMPARED.items()
        if row[key]
    ]
    return f"{engines}, {row['way']}: {', '.join(shares)}"


async def compare(setup: Setup, chosen: Sequence[Servers], work: Work, rows: Rows) -> int:
    """Adds a row for every way of a setup. Returns how many kinds of engines failed."""
    plain: Responses | None = None
    exact: Responses | None = None  # the first of engines with `engines.exact`
    failures = 0
    for servers in chosen:
        first: Responses | None = None
        try:
            async with contextlib.aclosing(rollouts(setup, servers, work, rows)) as each:
                async for one in each:
                    first = one.samples if first is None else first
                    plain = first if servers == PLAIN else plain
                    exact = one.samples if servers.exact and exact is None else exact
                    as_exact = exact if servers.exact else None
                    compared = {"as_plain": plain, "as_exact": as_exact, "as_first": first}
                    rows.add(setup, servers, **_figures(one, compared))
        except SeerError as error:
            failures += 1
            rows.add(setup, servers, error=str(error))
    return failures


def _figures(one: Rolled, compared: Mapping[str, Responses | None]) -> dict[str, Any]:
    drafting = one.report["drafting"]
    return {
        "way": one.way.name,
        "seconds": round(one.seconds, 1),
        "tokens": one.report["response_tokens"],
        "moved": one.report["migrations"],
        "fetched": one.report["fetches"],
        "drafting": drafting and {key: drafting[key] for key in COUNTS},
        **{
            key: other and msgspec.to_builtins(difference(other, one.samples))
            for key, other in compared.items()
        },
    }


async def rollouts(
    setup: Setup, servers: Servers, work: Work, rows: Rows
) -> AsyncGenerator[Rolled, None]:
    """Starts engines and yields a rollout for each of their ways. Raises SeerError."""
    whole = parse(config(setup, servers, WAYS[servers][0], work))
    fleet_config = with_values(whole, {"kv_pool": resolved(whole.kv_pool)}).fleet
    began = time.monotonic()
    async with open_fleet(fleet_config, rows.logs(setup, servers)) as fleet:
        rows.add(setup, servers, start_s=round(time.monotonic() - began, 1))
        for way in WAYS[servers]:
            for engine in fleet.engines:
                await engine.flush()
            yield await rolled(fleet, setup, servers, way, work)


async def rolled(fleet: Fleet, setup: Setup, servers: Servers, way: Way, work: Work) -> Rolled:
    """Rolls out in one way."""
    tree = config(setup, servers, way, work)
    async with Rollout(tree, fleet=fleet, placement=placement(servers, way)) as rollout:
        prompts = rollout.read_prompts(REASONER / "prompts" / "held_out.jsonl")[: work.prompts]
        began = time.monotonic()
        groups = [group async for group in rollout.run(prompts)]
        seconds = time.monotonic() - began
        report = rollout.report()
    samples = {
        f"{sample.group_id}/{sample.index}": Response(
            list(sample.response_ids), list(sample.rollout_log_probs)
        )
        for group in groups
        for sample in group.samples
    }
    return Rolled(way, samples, report, seconds)


async def run(setups: Sequence[tuple[Setup, Sequence[Servers]]], work: Work, rows: Rows) -> int:
    """Compares the setups one after the other. Returns how many kinds of engines failed."""
    return sum([await compare(setup, chosen, work, rows) for setup, chosen in setups])


def main() -> None:
    """Exits with status 1 if some engines failed; their rows have the reason."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file")
    parser.add_argument("--setups", default="triton-float32,triton-bfloat16", help="BACKEND-DTYPE")
    parser.add_argument("--servers", help=", ".join(servers.name for servers in WAYS))
    for name, default in Work()._asdict().items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    names = options.servers.split(",") if options.servers else None
    try:
        setups = [Setup.parse(name) for name in options.setups.split(",")]
        chosen = [(setup, kinds(setup, names)) for setup in setups]
    except ValueError as error:
        parser.error(str(error))
    if any(setup.backend != ON_CPU for setup in setups):
        require_gpu(PROGRAM)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    work = Work(*(getattr(options, name) for name in Work._fields))
    raise SystemExit(1 if asyncio.run(run(chosen, work, Rows(options.out, work))) else 0)


if __name__ == "__main__":
    main()
