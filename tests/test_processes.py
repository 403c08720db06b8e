"""Ports that are still free when a server has started."""

import socket

import pytest

from seer_sgl import processes
from seer_sgl.errors import ConfigError
from seer_sgl.processes import PORTS, free_port


def test_a_free_port_is_given_once_and_is_none_of_an_outgoing_connection() -> None:
    given = [free_port() for _ in range(50)]
    assert len(set(given)) == 50
    assert set(given) <= set(PORTS)


def test_a_port_somebody_listens_on_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(processes, "PORTS", range(port, port + 1))
    monkeypatch.setattr(processes, "_given", set())
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        with pytest.raises(ConfigError, match=f"no free port from {port} to {port}"):
            free_port()
    assert free_port() == port
