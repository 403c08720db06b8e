"""Drafts are what the target's attention can verify: trees, chains, or nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.plugin.speculation.abilities import (
    Verifier,
    obstacle,
    refuse_ngrams,
    verifies_trees,
)

DENSE = Verifier(
    gpu=True,
    backend="triton",
    deterministic=False,
    window=False,
    recurrent=False,
    chunked=False,
    latent=False,
)
CPU = DENSE._replace(gpu=False, backend="torch_native")


FA3 = "engines.sglang.attention-backend: fa3"


@pytest.mark.parametrize(
    ("verifier", "trees"),
    [
        (DENSE, True),
        (DENSE._replace(deterministic=True), True),
        (DENSE._replace(latent=True), True),
        (DENSE._replace(backend="flashinfer"), True),
        (DENSE._replace(backend="flashinfer", latent=True), False),
        (DENSE._replace(backend="fa3"), False),
        (DENSE._replace(backend="fa3", window=True, deterministic=True), False),
        (DENSE._replace(window=True), False),
        (DENSE._replace(recurrent=True), False),
        (CPU, True),
        (CPU._replace(window=True), True),
        (CPU._replace(window=True, deterministic=True), True),
    ],
)
def test_drafts_are_trees_only_where_a_node_attends_to_its_ancestors_alone(
    verifier: Verifier, trees: bool
) -> None:
    assert verifies_trees(verifier) is trees
    assert obstacle(verifier) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "flashinfer"},
        {"backend": "flashinfer", "deterministic": True},
        {"deterministic": True},
    ],
)
def test_a_window_that_is_verified_wrongly_names_the_key(changes: dict[str, Any]) -> None:
    problem = obstacle(DENSE._replace(window=True, **changes)) or ""
    assert "sliding window" in problem
    assert FA3 in problem


@pytest.mark.parametrize("backend", ["fa3", "fa4"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_chunks_that_a_graph_of_drafts_ignores_are_refused(
    backend: str, deterministic: bool
) -> None:
    llama4 = DENSE._replace(backend=backend, deterministic=deterministic, window=True, chunked=True)
    problem = obstacle(llama4) or ""
    assert f"{backend} verifies drafts of a model that attends within chunks wrongly" in problem
    assert "set draft.scope: none" in problem


@pytest.mark.parametrize("name", ["use_ngram_embedding", "use_engram"])
def test_a_model_whose_embeddings_read_the_tokens_before_is_refused(name: str) -> None:
    others: Any = SimpleNamespace(model_config=SimpleNamespace(**{name: False}))
    refuse_ngrams(others)  # nor is one of an SGLang that does not know such models
    longcat: Any = SimpleNamespace(model_config=SimpleNamespace(**{name: True}))
    with pytest.raises(ValueError, match=r"^draft\.scope: .* embeds n-grams"):
        refuse_ngrams(longcat)
