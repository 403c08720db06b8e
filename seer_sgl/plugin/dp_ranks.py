"""The data-parallel ranks of a server: each is an engine of its own for the driver.

SGLang starts a group of schedulers per rank, and a controller between them and the server.
"""

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psutil

from seer_sgl.link import contract

from .hook import SCHEDULER, Hook

POLL_S = 1.0  # as SGLang looks after its own child processes


class DpRank:
    """The data-parallel rank of this process. `number`: 0 in a server of one rank."""

    def __init__(self) -> None:
        self.number = 0

    def hooks(self) -> list[Hook]:
        return [
            Hook(
                f"{SCHEDULER}.init_ipc_channels",
                self.begin,
                "before",
                "SGLang's data-parallel ranks have one environment; each gets a name of its own "
                "before it connects to the driver and to the draft hub.",
                "A plugin can read its data-parallel rank when it is loaded.",
            ),
            Hook(
                "sglang.srt.managers.communicator.FanOutCommunicator.queueing_call",
                failures_first,
                "around",
                "SGLang answers a flush with the result of the data-parallel rank that replies "
                "first, although others may have failed, and crashes when it has to flush a busy "
                "rank after new weights; a failure is the first result.",
                "SGLang merges the results that data-parallel ranks have of a flush.",
            ),
        ]

    def begin(self, *_: object, **__: object) -> None:
        """Hook before `Scheduler.init_ipc_channels`: names this start of the rank."""
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        size = int(parallel.dp_size)
        if size == 1:
            return
        self.number = int(parallel.dp_rank)
        name = contract.rank_instance(os.environ.get(contract.INSTANCE), self.number, size)
        if name is not None:
            os.environ[contract.INSTANCE] = name


async def failures_first(
    stock: Callable[..., Awaitable[list[Any]]], communicator: Any, obj: Any
) -> list[Any]:
    """Hook around `FanOutCommunicator.queueing_call`: the results of all ranks, failures first."""
    results = await stock(communicator, obj)
    return sorted(results, key=lambda result: bool(getattr(result, "success", True)))


def until_one_ends(pids: Sequence[int], wait: Callable[[float], None] = time.sleep) -> int:
    """Returns the id of the first of some child processes that ends.

    SGLang watches the controller of data-parallel ranks, and nobody watches their schedulers: one
    that is killed would leave its requests without an answer.
    """
    try:
        processes = [psutil.Process(pid) for pid in pids]
        while True:
            for process in processes:
                if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                    return process.pid
            wait(POLL_S)
    except psutil.NoSuchProcess as ended:
        return ended.pid
