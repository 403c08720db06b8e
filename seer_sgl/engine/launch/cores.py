"""The CPU cores that each engine on this machine is pinned to."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from seer_sgl.config import Cores
from seer_sgl.errors import ConfigError

TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"  # Linux's


def engine_cores(
    cores: Cores, slot: int, engines: int, machine: Sequence[int], gpu: bool
) -> list[int] | None:
    """Returns the cores of the engine in a slot; None if `engines.cores` is not set.

    `machine`: all usable cores, those of a processor side by side. `auto` gives an engine on a CPU
    one core. An engine with a GPU gets an equal share of all cores, because its scheduler polls and
    its tokenizer, HTTP server and pool transfers have threads of their own. Engines beyond the
    number of cores, and engines that are added later, use the shares again from the first on.
    Raises ConfigError if the config has no list for this slot.
    """
    if cores is None:
        return None
    if cores == "auto" and not gpu:
        return [sorted(machine)[slot % len(machine)]]
    if cores == "auto":
        shares = min(engines, len(machine))
        begin, end = (k * len(machine) // shares for k in (slot % shares, slot % shares + 1))
        return list(machine[begin:end])
    if slot >= len(cores):
        raise ConfigError(f"engines.cores: {len(cores)} lists, and engine {slot + 1} needs one")
    return cores[slot]


def machine_cores() -> list[int]:
    """Returns the cores that this process may use, the threads of a physical core and the cores of
    a processor side by side."""
    return sorted(os.sched_getaffinity(0), key=_place)


def _place(core: int) -> tuple[int, int, int]:
    """Returns processor, first thread of the physical core, and number of a core."""
    topology = Path(TOPOLOGY.format(core))
    try:
        processor = int((topology / "physical_package_id").read_text())
        siblings = (topology / "thread_siblings_list").read_text()
    except (OSError, ValueError):  # not every container shows them
        return 0, core, core
    return processor, min(map(int, re.findall(r"\d+", siblings)), default=core), core
