"""The processes below this one: the SGLang servers that it started, and all others."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import psutil

from seer_sgl.engine.launch.process import SERVER_MODULE

T = TypeVar("T")


class Server(NamedTuple):
    """An SGLang server. `processes`: it and its own."""

    command: Sequence[str]
    processes: Sequence[psutil.Process]


class ProcessTree(NamedTuple):
    """Others: a router, and what the KV pool consists of."""

    servers: Sequence[Server]
    others: Sequence[psutil.Process]


def process_tree() -> ProcessTree:
    """Those that run now."""
    servers, others = [], list[psutil.Process]()
    for child in psutil.Process().children():
        command = query_or(child.cmdline, list[str]())
        below = query_or(partial(child.children, recursive=True), list[psutil.Process]())
        processes = [child, *below]
        if SERVER_MODULE in command:
            servers.append(Server(command, processes))
        else:
            others += processes
    return ProcessTree(servers, others)


def query_or(ask: Callable[[], T], otherwise: T) -> T:
    """Returns a fact about a process; something else of one that has ended."""
    try:
        return ask()
    except psutil.Error:
        return otherwise
