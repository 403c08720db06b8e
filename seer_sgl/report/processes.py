"""The report on processes that are restarted when they die: those of the KV pool, and the hub."""

from collections.abc import Iterable, Mapping
from typing import Any

from seer_sgl.processes.restarts import Restarts


def starts_of(processes: Iterable[Restarts]) -> dict[str, int]:
    """Returns the starts of each process after its first one, by name."""
    return {each.name: each.count for each in processes}


def section(before: Mapping[str, int], processes: Iterable[Restarts]) -> list[dict[str, Any]]:
    """Returns the report's section `processes`. `before`: the starts before the rollout."""
    return [
        {
            "name": each.name,
            "respawns": each.count - before.get(each.name, 0),
            "quarantine": each.quarantine,
        }
        for each in processes
    ]
