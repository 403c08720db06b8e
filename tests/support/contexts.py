"""A plugin for pytest under coverage: which test runs which lines (tests/mutation.py)."""

from collections.abc import Generator

import pytest
from coverage import Coverage


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Has coverage name the test, also for what runs in a task or a thread meanwhile."""
    measuring = Coverage.current()
    assert measuring is not None
    measuring.switch_context(item.nodeid.partition("[")[0])
    try:
        yield
    finally:
        measuring.switch_context("")
