"""Confines the ports that SGLang's libraries open on all interfaces to this machine.

torch listens for the ranks of a server (`--nccl-port`, and Gloo for each group of ranks). Mooncake
listens for other clients of the pool. If all of them run on this machine, no other machine needs
these ports.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl, urlsplit

from seer_sgl.processes import loopback

from .hook import TRANSFER, Hook

HOST = "127.0.0.1"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"  # torch's environment variable
P = ParamSpec("P")
R = TypeVar("R")
SCHEME = "seer-loopback"  # of torch's rendezvous


def hooks() -> list[Hook]:
    return [
        Hook(
            "sglang.srt.distributed.bootstrap._init_parallel_groups",
            meet_on_loopback,
            "around",
            "SGLang lets the ranks of a server meet at a port that is open on all interfaces; "
            "ranks of one machine meet on loopback.",
            "SGLang lets the ranks of one machine meet on loopback.",
        ),
        Hook(
            "sglang.srt.distributed.parallel_state.create_custom_parallel_group",
            group_on_loopback,
            "around",
            "SGLang creates HiCache's groups of ranks later, again with open ports; groups within "
            "one machine are created on loopback.",
            "SGLang lets the ranks of one machine meet on loopback.",
        ),
        Hook(
            f"{TRANSFER}.init_mooncake_transfer_engine",
            confine,
            "after",
            "Mooncake's transfer engine opens ports on all interfaces; in a fleet on one machine "
            "they are confined to loopback.",
            "Mooncake has a setting for the address on which it listens.",
        ),
        Hook(
            "sglang.srt.mem_cache.storage.mooncake_store.mooncake_store.MooncakeStore.__init__",
            confine,
            "after",
            "Mooncake's store client opens ports on all interfaces; in a fleet on one machine they "
            "are confined to loopback.",
            "Mooncake has a setting for the address on which it listens.",
        ),
    ]


def confine(result: R, *_: object, **__: object) -> R:
    """Hook after the two calls in which Mooncake opens ports: confines them to loopback.

    Raises OpenPortError if the kernel refuses, or if another machine connected before.
    """
    loopback.confine_if_wanted()
    return result


def meet_on_loopback(stock: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Hook around `_init_parallel_groups`: ranks of one machine meet on loopback.

    A server without --dist-init-addr runs on one machine.
    """
    from sglang.srt.runtime_context import get_parallel

    scheme, _, address = kwargs["dist_init_method"].partition("://")
    if scheme != "tcp" or get_parallel().dist_init_addr:
        stock(*args, **kwargs)
        return
    from torch.distributed.rendezvous import register_rendezvous_handler

    register_rendezvous_handler(SCHEME, rendezvous)
    kwargs["dist_init_method"] = f"{SCHEME}://{address}"
    with _gloo_on_loopback():
        stock(*args, **kwargs)


def group_on_loopback(stock: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Hook around `create_custom_parallel_group`: creates HiCache's groups on loopback."""
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().dist_init_addr:
        return stock(*args, **kwargs)
    with _gloo_on_loopback():
        return stock(*args, **kwargs)


@contextlib.contextmanager
def _gloo_on_loopback() -> Iterator[None]:
    """Sets Gloo's interface to loopback within the block, so for groups of the server only.

    A trainer's group may have members on other machines.
    """
    if GLOO_INTERFACE in os.environ:  # the user's own choice
        yield
        return
    os.environ[GLOO_INTERFACE] = "lo"
    try:
        yield
    finally:
        del os.environ[GLOO_INTERFACE]


def rendezvous(url: str, timeout: timedelta, **_: object) -> Iterator[tuple[Any, int, int]]:
    """torch's own rendezvous by TCP, with a socket that listens on loopback only.

    url: tcp://host:port?rank=R&world_size=N, under our scheme; yields (store, R, N).
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    rank, world_size, port = int(query["rank"]), int(query["world_size"]), parts.port or 0
    listener = _listen(port) if rank == 0 else None
    store = TCPStore(
        HOST,
        port,
        world_size,
        is_master=rank == 0,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=listener,
    )
    yield store, rank, world_size
    raise RuntimeError("ranks meet once")


def _listen(port: int) -> int:
    """Returns the file descriptor of a socket listening on loopback; torch closes it."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
        return listener.detach()
