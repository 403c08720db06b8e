"""What the target needs per draft width."""

import pytest

from .probe import run_probe

pytestmark = pytest.mark.process


def test_verifying_backends_do_not_reserve_memory_for_decoding() -> None:
    sizes = run_probe("-m", "tests.plugin.graph_buffers")
    assert sizes["stock"] > 18e9
    assert sizes["saved"] < 0.25e9
