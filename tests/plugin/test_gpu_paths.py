"""What a GPU engine does beside its kernels: lists, order, memory (gpu_paths.py)."""

from collections.abc import Mapping
from typing import Any

import pytest

from seer_sgl.link.contract import ALGORITHM
from seer_sgl.plugin.speculation.algorithm import REFUSED_VARIABLES

from .gpu_paths import LAYERS, PASSES
from .probe import run_probe

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def found() -> Mapping[str, Any]:
    figures: Mapping[str, Any] = run_probe("-m", "tests.plugin.gpu_paths")
    return figures


def test_each_forward_pass_builds_its_lists_once_and_all_layers_use_them(
    found: Mapping[str, Any],
) -> None:
    assert found["lists"] == {"built": PASSES, "used": PASSES * LAYERS, "own": True}


@pytest.mark.parametrize("kind", ["prefill", "decode", "root"])
def test_a_step_without_drafts_publishes_its_lengths_first_and_reads_nothing(
    found: Mapping[str, Any], kind: str
) -> None:
    assert found["steps"][kind] == ["publish", "forward"]


def test_verifying_backends_do_not_reserve_memory_for_decoding(found: Mapping[str, Any]) -> None:
    stock, saved = found["buffers"]
    assert stock > 18e9
    assert saved < 0.25e9


def test_the_kv_cache_leaves_room_for_drafting_unless_its_share_is_given(
    found: Mapping[str, Any],
) -> None:
    share = found["reserved"]
    assert 0.02 < share["plain"] - share["drafting"] < 0.2
    assert share["given"] == 0.5


def test_step_times_include_the_draws_at_all_nodes(found: Mapping[str, Any]) -> None:
    assert found["measured"]["calls"] == [
        *("decode 1", "draw 1", "verify 3", "draw 3"),
        *("decode 2", "draw 2", "verify 6", "draw 6"),
    ]
    assert found["measured"]["measured"] == [[1, 1], [1, 3], [2, 1], [2, 3]]
    assert found["measured"]["positive"]


@pytest.mark.parametrize("variable", REFUSED_VARIABLES)
def test_variables_that_break_drafts_silently_are_refused(
    found: Mapping[str, Any], variable: str
) -> None:
    line = f"{variable}: not with --speculative-algorithm {ALGORITHM}"
    assert found["reserved"][variable] == line
