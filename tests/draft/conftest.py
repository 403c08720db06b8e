"""Fixtures of the tests of drafting."""

from collections.abc import Iterator

import pytest

from .replicas import Engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine whose replica shares its tokens; at the end its books are checked."""
    engine = Engine()
    yield engine
    engine.check()
