"""A speculative run stops where plain decoding would have stopped."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import MODEL
from tests.tokenizers.byte_rows import ROWS

from .probe import run_probe

pytestmark = pytest.mark.process

CASES = 2000
# Parts of characters of two, three and four bytes, a line feed, a letter and both in one token.
PARTS = [0xC3, 0xA9, 0xE6, 0x97, 0xF0, 0xCC, 0x81, ord("\n"), ord("a"), 256]


def test_runs_of_any_size_and_chunks_of_any_size_end_as_token_by_token(tmp_path: Path) -> None:
    """The program asserts the identity of every case; this test checks the counts of outcomes."""
    models = json.dumps({str(MODEL): [], str(ROWS[0].make(tmp_path)): PARTS})
    for seen in run_probe("-m", "tests.plugin.stop_cases", str(CASES), models):
        assert seen["stock differs"] > CASES / 50, "the cases must cover a difference"
        assert seen["divided"] > CASES / 2
        for end in ("stop str", "stop int", "length NoneType"):
            assert seen[end] > CASES / 50, end
