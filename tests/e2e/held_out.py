"""The shipped model's held-out prompts, as text and as tokens."""

import json

from seer_sgl.driver.tokenizer import Tokenizer
from tests.e2e.conftest import HELD_OUT, MODEL
from tests.support.tokenizers import load_tokenizer


def tokenizer() -> Tokenizer:
    """Returns the model's tokenizer."""
    found = load_tokenizer(str(MODEL))
    assert found is not None
    return found


def texts(count: int) -> list[str]:
    """Returns the first prompts."""
    return [json.loads(line)["prompt"] for line in HELD_OUT.read_text().splitlines()[:count]]


def prompts(count: int) -> list[list[int]]:
    """Returns the tokens of the first prompts."""
    encode = tokenizer().encode
    return [list(encode(text)) for text in texts(count)]
