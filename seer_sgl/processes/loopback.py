"""Confines the listening sockets of this process to loopback.

Mooncake 0.3.13 listens on all interfaces for KV transfers and has no setting for this. Linux lets a
process bind its own sockets to a network device at any time, without privileges since 5.7. A socket
bound to the loopback device accepts no connection from another machine, nor through another address
of this machine.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import psutil

# Environment variable, set in the processes of a local fleet, which confine their own sockets.
ONLY = "SEER_SGL_LOOPBACK_ONLY"
DEVICE = b"lo\0"
NAME_BYTES = 16  # of a device, in Linux (IFNAMSIZ)
OPEN_FILES = "/proc/self/fd"
# States of connections that could still transfer data: established, or during the handshake.
ALIVE = (psutil.CONN_ESTABLISHED, psutil.CONN_SYN_RECV)


class OpenPortError(RuntimeError):
    """A port of this process cannot be confined, or another machine has connected to it."""


def confine() -> None:
    """Binds every TCP socket that listens on all interfaces to the loopback device.

    Sockets with a specific address stay unchanged: NCCL and Gloo choose one for their peers. Raises
    OpenPortError if the kernel refuses, or if another machine has already connected.
    """
    ports = set()
    for listener in _listeners():
        host, port = listener.getsockname()[:2]
        if ip_address(host).is_unspecified:
            _bind_to_device(listener)
            ports.add(port)
    for connection in psutil.net_connections("tcp") if ports else []:
        if connection.raddr and connection.laddr and connection.status in ALIVE:
            host, port, peer = *connection.laddr, connection.raddr.ip
            if port in ports and peer != host and not is_loopback(peer):
                raise OpenPortError(f"{peer} connected to port {port}")


def confine_if_wanted() -> None:
    """Calls `confine` in a process of a local fleet; other fleets may need remote connections."""
    if ONLY in os.environ:
        confine()


def refusal() -> str | None:
    """Returns the reason why this machine cannot confine sockets to loopback; None if it can."""
    with socket.socket() as probe:
        try:
            _bind_to_device(probe)
        except OpenPortError as error:
            return str(error)
    return None


def _bind_to_device(listener: socket.socket) -> None:
    """Binds a socket to the loopback device, unless it is: Linux lets only root do that twice."""
    if listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, NAME_BYTES) == DEVICE:
        return
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, DEVICE)
    except OSError as error:
        raise OpenPortError(
            f"Linux does not bind a socket to loopback: {error.strerror} (needs Linux 5.7)"
        ) from error


def _listeners() -> Iterator[socket.socket]:
    for file in filter(Path.is_socket, Path(OPEN_FILES).iterdir()):
        with (
            contextlib.suppress(OSError),  # it was closed meanwhile
            socket.socket(fileno=os.dup(int(file.name))) as opened,
        ):
            if _listens(opened):
                yield opened


def _listens(opened: socket.socket) -> bool:
    return (
        opened.family in (socket.AF_INET, socket.AF_INET6)
        and opened.type == socket.SOCK_STREAM
        and bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    )


def is_loopback(host: str) -> bool:
    """Returns whether a name or an address leads to its own machine only."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:  # a name
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback
