"""Ports that are still free when a server has started, and its log."""

import os
import socket
import sys
from pathlib import Path

import pytest

from seer_sgl import processes
from seer_sgl.errors import ConfigError
from seer_sgl.processes import PORTS, OwnedProcess, free_port


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


@pytest.mark.parametrize("before", ["", "what the last one wrote"])
async def test_a_log_is_for_its_owner_to_read(tmp_path: Path, before: str) -> None:
    log = tmp_path / "logs" / "e0.log"
    if before:
        log.parent.mkdir()
        log.write_text(before)
        log.chmod(0o644)
    process = await OwnedProcess.start([sys.executable, "-c", "print('x')"], log, os.environ)
    assert await process.wait() == 0
    assert log.read_text() == "x\n"
    assert log.stat().st_mode & 0o777 == 0o600
