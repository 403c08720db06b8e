"""A speculative run stops where plain decoding would have stopped."""

import pytest

from .probe import run_probe

pytestmark = pytest.mark.process

CASES = 2000


def test_runs_of_any_size_and_chunks_of_any_size_end_as_token_by_token() -> None:
    """The program asserts the identity of every case; this test checks the counts of outcomes."""
    seen = run_probe("-m", "tests.plugin.stop_cases", str(CASES))
    assert seen["stock differs"] > CASES / 50, "the cases must cover a difference"
    assert seen["divided"] > CASES / 2
    for end in ("stop str", "stop int", "length NoneType"):
        assert seen[end] > CASES / 50, end
