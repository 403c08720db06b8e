"""The child processes of this process: the SGLang servers that it started, and all others."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import psutil

from seer_sgl.engine.launch.process import SERVER_MODULE

T = TypeVar("T")


class ServerProcesses(NamedTuple):
    """An SGLang server. `processes`: the server and its child processes."""

    command: Sequence[str]
    processes: Sequence[psutil.Process]


class ProcessTree(NamedTuple):
    """All child processes. `others`: the processes of the KV pool, of a router."""

    servers: Sequence[ServerProcesses]
    others: Sequence[psutil.Process]


def process_tree() -> ProcessTree:
    """Returns the processes that run now."""
    servers, others = [], list[psutil.Process]()
    for child in psutil.Process().children():
        command = query_or(child.cmdline, list[str]())
        below = query_or(partial(child.children, recursive=True), list[psutil.Process]())
        processes = [child, *below]
        if SERVER_MODULE in command:
            servers.append(ServerProcesses(command, processes))
        else:
            others += processes
    return ProcessTree(servers, others)


def query_or(query: Callable[[], T], otherwise: T) -> T:
    """Returns the result of a query about a process; `otherwise` if the process has ended."""
    try:
        return query()
    except psutil.Error:
        return otherwise
