"""Sorts the tests by cost: tests with processes come after quick ones, those with engines last.

So at most four servers run at once, and a broken unit test fails in seconds.
"""

import logging
import os
import signal
from collections.abc import Iterator

import pytest

from seer_sgl.driver import loop
from seer_sgl.processes.child import hold_ports
from tests.logs import logged

pytest_plugins = ["tests.support.tiers", "tests.support.fixtures", "tests.support.engine_starts"]

# A model name that is no folder would be looked up on the Hugging Face hub.
os.environ["HF_HUB_OFFLINE"] = "1"
# A server opens its port half a minute after a test chose it, and other sessions choose ports too.
hold_ports()
# A test run that is terminated ends its engines, as one that is interrupted.
signal.signal(signal.SIGTERM, signal.default_int_handler)
# A shell starts its background jobs with SIGINT ignored, and so would be the programs of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests by cost; keeps the order within a class of cost."""

    def cost(item: pytest.Item) -> int:
        markers = ("process", "own_engines", "shared_engines")
        return max((1 + i for i, m in enumerate(markers) if item.get_closest_marker(m)), default=0)

    items.sort(key=cost)


@pytest.fixture(autouse=True)
def empty_books() -> Iterator[None]:
    """Fails a test if an idle driver's scheduler holds leftover state (Scheduler.check)."""
    breaches: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: breaches.append(record.getMessage())  # type: ignore[method-assign]
    loop.logger.addHandler(handler)
    yield
    loop.logger.removeHandler(handler)
    assert not [breach for breach in breaches if breach.startswith(loop.BREACH)]


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """The messages that seer-sgl logs during the test, at level info and above."""
    with logged() as lines:
        yield lines
