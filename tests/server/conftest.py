"""Fixtures of the tests of the server. No test here starts a process to load a tokenizer."""

from collections.abc import AsyncIterator

import pytest

from tests.server.helpers import Fakes, Served, served, two
from tests.support.tokenizers import without_sglang as without_sglang  # noqa: PLC0414


@pytest.fixture
def fakes() -> Fakes:
    """Two engines on which a long response takes a while."""
    return two()


@pytest.fixture
async def it(fakes: Fakes) -> AsyncIterator[Served]:
    """A server of these engines."""
    async with served(*fakes) as opened:
        yield opened
