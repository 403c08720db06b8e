"""Tokenizers of a folder, and without SGLang, for tests whose engines are fakes."""

from collections.abc import Iterator

import pytest

from seer_sgl.driver import load_tokenizer as loading
from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.link.tokenizer import TokenizerSource


def load_tokenizer(path: str, trust_remote_code: bool = False) -> Tokenizer | None:
    """Returns the tokenizer of a folder, loaded like that of an engine with defaults."""
    source = TokenizerSource(tokenizer_path=path, trust_remote_code=trust_remote_code)
    return loading.tokenizer_of(source)


@pytest.fixture(autouse=True)
def without_sglang() -> Iterator[None]:
    """Has transformers load tokenizers, instead of a process that imports SGLang for seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "_by_sglang", lambda _: None)
        yield
