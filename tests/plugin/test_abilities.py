"""Drafts are what the target's attention can verify: trees, chains, or nothing."""

import pytest

from seer_sgl.plugin.speculation.abilities import Verifier, obstacle, verifies_trees

DENSE = Verifier(gpu=True, backend="triton", deterministic=False, window=False, recurrent=False)
CPU = DENSE._replace(gpu=False, backend="torch_native")


@pytest.mark.parametrize(
    ("verifier", "trees"),
    [
        (DENSE, True),
        (DENSE._replace(backend="flashinfer"), True),
        (DENSE._replace(backend="fa3"), False),
        (DENSE._replace(window=True), False),
        (DENSE._replace(recurrent=True), False),
        (CPU, True),
        (CPU._replace(window=True), True),
    ],
)
def test_drafts_are_trees_only_where_a_node_attends_to_its_ancestors_alone(
    verifier: Verifier, trees: bool
) -> None:
    assert verifies_trees(verifier) is trees


@pytest.mark.parametrize(
    "verifier",
    [
        DENSE._replace(backend="flashinfer", window=True),
        DENSE._replace(backend="flashinfer", window=True, deterministic=True),
        DENSE._replace(deterministic=True, window=True),
    ],
)
def test_a_window_that_is_verified_wrongly_names_the_key(verifier: Verifier) -> None:
    problem = obstacle(verifier)
    assert problem is not None
    assert "sliding window" in problem
    assert "engines.sglang.attention-backend: fa3" in problem


@pytest.mark.parametrize(
    "verifier",
    [
        DENSE._replace(deterministic=True),
        DENSE._replace(window=True),
        DENSE._replace(backend="fa3", window=True, deterministic=True),
        CPU._replace(window=True, deterministic=True),
    ],
)
def test_what_is_verified_right_is_drafted_for(verifier: Verifier) -> None:
    assert obstacle(verifier) is None
