"""Fixtures that tests of several folders name."""

import time
from collections.abc import Iterator

import pytest

from seer_sgl.engine.launch import process
from tests.support.launched import owned
from tests.support.waiting import DEADLINE_S


@pytest.fixture
def fake_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the launchers start fake servers."""
    monkeypatch.setattr(process, "SERVER_MODULE", "tests.engine.fake_launched")


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails a test that leaves a process."""
    yield
    deadline = time.monotonic() + DEADLINE_S
    while owned() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not owned()
