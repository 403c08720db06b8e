"""Tokenizers without SGLang, for tests whose engines are fakes."""

from collections.abc import Iterator

import pytest

from seer_sgl.driver import load_tokenizer


@pytest.fixture(autouse=True)
def without_sglang() -> Iterator[None]:
    """Has transformers load tokenizers, instead of a process that imports SGLang for seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_tokenizer, "_by_sglang", lambda _: None)
        yield
