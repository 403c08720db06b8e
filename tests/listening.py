"""Listening TCP sockets of processes: on what address, and on what network device."""

import ctypes
import os
import socket
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import NamedTuple

import psutil

PIDFD_GETFD = 438  # a system call without a name in Python's library
DEVICE_NAME_BYTES = 16  # IFNAMSIZ
_libc = ctypes.CDLL(None, use_errno=True)


class Listener(NamedTuple):
    """A listening socket. `device`: the one it is bound to, or empty."""

    pid: int
    ip: str
    port: int
    device: str

    @property
    def on_loopback(self) -> bool:
        """Whether no other machine can connect to it."""
        return self.device == "lo" or ip_address(self.ip).is_loopback


def listeners(processes: Iterable[psutil.Process]) -> list[Listener]:
    """All listening TCP sockets of the processes that are still there."""
    return [listener for process in processes for listener in _listeners(process)]


def family(process: psutil.Process) -> list[psutil.Process]:
    """The process and everything that it has started, and so on."""
    return [process, *process.children(recursive=True)]


def _listeners(process: psutil.Process) -> Iterator[Listener]:
    try:
        found = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        for connection in found:
            yield Listener(process.pid, *connection.laddr, _device(process.pid, connection.fd))
    except (psutil.NoSuchProcess, ProcessLookupError):  # it ended just now
        return


def _device(pid: int, fd: int) -> str:
    with os.fdopen(os.pidfd_open(pid), "rb") as handle:
        copy = _libc.syscall(PIDFD_GETFD, handle.fileno(), fd, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    with socket.socket(fileno=copy) as opened:
        name = opened.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, DEVICE_NAME_BYTES)
    return name.rstrip(b"\0").decode()
