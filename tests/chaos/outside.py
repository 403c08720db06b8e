"""The faults outside of engines: of the pool's and the hub's processes, and of connections."""

import asyncio
import contextlib

from tests.support.processes import child

from .plan import Fault
from .proxy import Proxy
from .waits import Missed, kill, stopped, until

DELAY_S = 0.3  # per piece of data on a slow wire
# What a proxy counts while the fault lasts; without it the fault has disturbed nothing.
TRACES = {"slow": "delayed", "cut": "held", "drop": "dropped"}


async def kill_process(fault: Fault) -> str:
    """Kills a store node, the master or the hub, and waits until it is restarted."""
    word = _word(fault.target)
    before = child(word)
    kill(before)
    again: list[int] = []

    def restarted() -> bool:
        with contextlib.suppress(ProcessLookupError):
            again[:] = [child(word).pid]
        return bool(again) and again != [before.pid]

    await until(restarted, "it was not restarted")
    return f"process {before.pid}, then {again[0]}"


async def stop_process(fault: Fault) -> str:
    """Stops a store node, the master or the hub for a while."""
    process = child(_word(fault.target))
    with stopped(process):
        await asyncio.sleep(fault.seconds)
    return f"process {process.pid}"


async def disturb(wire: Proxy, fault: Fault) -> str:
    """Disturbs the connections of a proxy. Raises Missed if it met none, or no data."""
    before = wire.counts.copy()
    match fault.kind.deed:
        case "slow":
            met = await wire.slow(fault.seconds, DELAY_S)
        case "cut":
            met = await wire.cut(fault.seconds)
        case "drop":
            met = await wire.drop(fault.seconds)
        case "reset":
            met = wire.reset()
        case _:
            met = wire.half_close()
    seen, trace = wire.counts - before, TRACES.get(fault.kind.deed)
    if not met or (trace is not None and not seen[trace]):
        raise Missed(f"{met} connections, {dict(seen)}")
    return f"{met} connections" + (f", {seen[trace]} pieces {trace}" if trace is not None else "")


def _word(target: str) -> str:
    """Returns the word that only the command line of this process has."""
    return "drafthub" if target == "hub" else target
