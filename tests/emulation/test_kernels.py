"""Which of SGLang's Triton attention kernels add the same terms in the same order.

docs/exactness.md and `engines.exact` rest on these facts. They hold for the kernels' structure,
in float32; kernels.py states what the interpreter cannot show.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.plugin.probe import run_probe

pytestmark = pytest.mark.process

ROUNDING = 1e-6  # of float32, for outputs of about 1


@pytest.fixture(scope="module")
def gaps() -> Mapping[str, Any]:
    """Returns the largest difference by comparison."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRITON_INTERPRET", "1")
        figures: Mapping[str, Any] = run_probe("-m", "tests.emulation.kernels")
    return figures


SAME_BITS = ("chain of 3", "chain of 5", "chain of 9", "chain in a batch")


@pytest.mark.parametrize("what", [*SAME_BITS, "prefill", "continuation"])
def test_prefill_continuation_and_chains_of_any_width_give_a_token_the_bits_of_its_own_step(
    gaps: Mapping[str, Any], what: str
) -> None:
    assert gaps[what] == 0


def test_verification_computes_attention(gaps: Mapping[str, Any]) -> None:
    assert gaps["float64"] < ROUNDING


def test_a_path_of_a_tree_differs_from_the_chain_by_rounding(gaps: Mapping[str, Any]) -> None:
    # Other branches stand between its tokens, so they fall into other blocks.
    assert 0 < gaps["tree"] < ROUNDING


def test_decoding_differs_from_prefill_by_rounding(gaps: Mapping[str, Any]) -> None:
    # So a plain engine that divides a response is not exact with this backend.
    lengths = gaps["decode"]
    assert max(lengths.values()) < ROUNDING
    assert all(gap > 0 for length, gap in lengths.items() if int(length) >= 64)
