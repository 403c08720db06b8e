"""Lists the listening TCP sockets of processes, with their address and network device."""

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
    """A listening socket. `device`: the network device it is bound to, or empty."""

    pid: int
    ip: str
    port: int
    device: str

    @property
    def on_loopback(self) -> bool:
        """Returns whether only this machine can connect to it."""
        return self.device == "lo" or ip_address(self.ip).is_loopback


def listeners(processes: Iterable[psutil.Process]) -> list[Listener]:
    """Returns the listening TCP sockets of all given processes that still run."""
    return [listener for process in processes for listener in _listeners(process)]


def family(process: psutil.Process) -> list[psutil.Process]:
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
