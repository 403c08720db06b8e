"""Listening sockets of this process, kept within this machine.

A library that listens on all interfaces and has no setting for it (Mooncake 0.3.13, for the ports
that read and write KV) is taken back to loopback by Linux itself: a process may bind its own
sockets to a network device at any time, without privileges since Linux 5.7. A socket bound to the
loopback device accepts no connection from another machine, nor by another address of this one.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import psutil

# Environment variable: set in the processes of a local fleet, which confine themselves.
ONLY = "SEER_SGL_LOOPBACK_ONLY"
DEVICE = b"lo\0"
OPEN_FILES = "/proc/self/fd"
# Connections that could still do harm: complete ones, and the handshakes under way.
ALIVE = (psutil.CONN_ESTABLISHED, psutil.CONN_SYN_RECV)


class OpenPortError(RuntimeError):
    """A port of this process is or was open to other machines."""


def confine() -> None:
    """Bind every TCP socket that listens on all interfaces to the loopback device.

    One with an address of its own is left as it is: NCCL and Gloo choose one for their peers.
    Raises OpenPortError where the kernel refuses, and where another machine connected before.
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
            if port in ports and peer != host and not _is_loopback(peer):
                raise OpenPortError(f"{peer} connected to port {port}")


def confine_if_wanted() -> None:
    """`confine` in a process of a local fleet; elsewhere other machines may have to connect."""
    if ONLY in os.environ:
        confine()


def refusal() -> str | None:
    """Why this machine cannot keep such sockets on loopback; None where it can."""
    with socket.socket() as probe:
        try:
            _bind_to_device(probe)
        except OpenPortError as error:
            return str(error)
    return None


def _bind_to_device(listener: socket.socket) -> None:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, DEVICE)
    except OSError as error:
        raise OpenPortError(
            f"Linux does not bind a socket to loopback: {error.strerror} (from 5.7 on it does)"
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


def _is_loopback(host: str) -> bool:
    address = ip_address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback
