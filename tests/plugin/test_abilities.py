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
WINDOW = "sliding window"
CHUNKS = "verifies drafts of a model that attends within chunks wrongly"
NO_DRAFTS = "set draft.scope: none"
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
    ("changes", "reason", "repair"),
    [
        ({"backend": "flashinfer"}, WINDOW, FA3),
        ({"backend": "flashinfer", "deterministic": True}, WINDOW, FA3),
        ({"deterministic": True}, WINDOW, FA3),
        ({"backend": "fa3", "chunked": True}, f"fa3 {CHUNKS}", NO_DRAFTS),
        ({"backend": "fa4", "chunked": True}, f"fa4 {CHUNKS}", NO_DRAFTS),
        ({"backend": "fa3", "chunked": True, "deterministic": True}, f"fa3 {CHUNKS}", NO_DRAFTS),
    ],
)
def test_a_window_or_chunks_that_are_verified_wrongly_are_refused_with_the_repair(
    changes: dict[str, Any], reason: str, repair: str
) -> None:
    problem = obstacle(DENSE._replace(window=True, **changes)) or ""
    assert reason in problem
    assert repair in problem


@pytest.mark.parametrize("name", ["use_ngram_embedding", "use_engram"])
def test_a_model_whose_embeddings_read_the_tokens_before_is_refused(name: str) -> None:
    others: Any = SimpleNamespace(model_config=SimpleNamespace(**{name: False}))
    refuse_ngrams(others)  # nor is one of an SGLang that does not know such models
    longcat: Any = SimpleNamespace(model_config=SimpleNamespace(**{name: True}))
    with pytest.raises(ValueError, match=r"^draft\.scope: .* embeds n-grams"):
        refuse_ngrams(longcat)
