"""Fixtures that tests of several folders name."""

import os
from collections.abc import Iterator

import pytest

from seer_sgl.engine.launch import process
from tests.support.processes import assert_nothing_left
from tests.support.waiting import DEADLINE_S


@pytest.fixture
def fake_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the launchers start fake servers."""
    monkeypatch.setattr(process, "SERVER_MODULE", "tests.engine.fake_launched")


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails a test that leaves a process."""
    yield
    assert_nothing_left(os.getpid(), DEADLINE_S)
