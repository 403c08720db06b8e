"""Listening sockets are confined to this machine, for every address they were bound to."""

import ctypes
import multiprocessing
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from seer_sgl.processes import loopback
from seer_sgl.processes.loopback import OpenPortError
from tests.listening import listeners

NOBODY = 65534
PR_SET_DUMPABLE = 4
ANY = [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")]


class Address(NamedTuple):
    ip: str
    port: int


class Connection(NamedTuple):
    """A connection as psutil returns it."""

    laddr: Address
    raddr: Address
    status: str


@contextmanager
def open_to_all(family: socket.AddressFamily, host: str) -> Iterator[socket.socket]:
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        listener.listen()
        yield listener


def ports_open_to_others() -> set[int]:
    return {found.port for found in listeners([psutil.Process()]) if not found.on_loopback}


@pytest.mark.parametrize(("family", "host"), ANY)
def test_a_socket_on_all_interfaces_is_left_to_this_machine(
    family: socket.AddressFamily, host: str
) -> None:
    with open_to_all(family, host) as listener:
        port = listener.getsockname()[1]
        assert port in ports_open_to_others()
        loopback.confine()
        assert port not in ports_open_to_others()
        local = "127.0.0.1" if family == socket.AF_INET else "::1"
        with socket.create_connection((local, port)):
            pass


def confine_twice_as_nobody() -> None:
    """Runs in a process of its own."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or /proc/self would be root's
    with open_to_all(*ANY[0]):
        loopback.confine()
        loopback.confine()


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_without_privileges_may_confine_twice() -> None:
    process = multiprocessing.get_context("fork").Process(target=confine_twice_as_nobody)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_sockets_that_do_not_listen_or_have_an_address_of_their_own_are_not_touched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as bound:
        bound.bind(("0.0.0.0", 0))
        before = len(list(Path(loopback.OPEN_FILES).iterdir()))
        loopback.confine()
        assert len(list(Path(loopback.OPEN_FILES).iterdir())) == before
        for each in (listener, bound):
            assert not each.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).strip(b"\0")


def test_a_connection_of_this_machine_from_before_is_no_reason_to_stop() -> None:
    with (
        open_to_all(*ANY[0]) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1])),
    ):
        loopback.confine()


@pytest.mark.parametrize("status", [psutil.CONN_ESTABLISHED, psutil.CONN_SYN_RECV])
def test_a_machine_that_connected_before_is_named(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_to_all(*ANY[0]) as listener:
        port = listener.getsockname()[1]
        connection = Connection(Address("10.0.0.1", port), Address("10.0.0.2", 4000), status)
        monkeypatch.setattr(psutil, "net_connections", lambda _: [connection])
        with pytest.raises(OpenPortError, match=rf"^10\.0\.0\.2 connected to port {port}$"):
            loopback.confine()


def test_only_processes_of_a_local_fleet_are_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_to_all(*ANY[0]) as listener:
        port = listener.getsockname()[1]
        monkeypatch.delenv(loopback.ONLY, raising=False)
        loopback.confine_if_wanted()
        assert port in ports_open_to_others()
        monkeypatch.setenv(loopback.ONLY, "1")
        loopback.confine_if_wanted()
        assert port not in ports_open_to_others()


def test_a_kernel_that_cannot_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loopback.refusal() is None
    monkeypatch.setattr(loopback, "DEVICE", b"none-such\0")
    assert loopback.refusal() == (
        "Linux does not bind a socket to loopback: No such device (needs Linux 5.7)"
    )
