"""The keys that docs/report.md explains are those of a report."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seer_sgl.processes.restarts import Incidents, Restarts
from seer_sgl.report.draft_report import FleetDraftCounters, section
from seer_sgl.rollout.fleet_figures import process_section
from tests.rollout.fakes import fakes, rolled
from tests.support.drafting import engine, hub
from tools.docs.report_keys import KEYS

OPEN = (
    "finish_reasons",
    "drafting.verified_steps",
    "engines[].off",
)  # objects with keys of their own


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Yields the paths of a report's keys: of all that is neither an object nor a list of them."""
    if path in OPEN:
        yield f"{path}.*"
    elif isinstance(value, dict):
        if path in KEYS:
            yield path
        for key, inner in value.items():
            yield from paths(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        yield f"{path}[]"
        for inner in value[:1]:
            if isinstance(inner, dict):
                yield from paths(inner, f"{path}[]")
    else:
        yield path


async def test_every_key_of_the_report_is_explained_and_no_other(tmp_path: Path) -> None:
    async with fakes() as it:
        kept = it.config_with(rollout={"journal": str(tmp_path)})
        await rolled(kept, groups=1)
        _, report = await rolled(it.config, resume=tmp_path)
    before = FleetDraftCounters.of({"e0": engine(0)}, hub(0))
    drafting = section(before, FleetDraftCounters.of({"e0": engine(3)}, hub(3)))
    assert drafting is not None
    helpers = process_section({}, [Restarts("draft hub", Incidents())])
    seen = set(paths({**report, "drafting": drafting, "processes": helpers, "error": None}))
    assert seen == set(KEYS)
