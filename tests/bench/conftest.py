"""No test of this folder starts a process to load a tokenizer."""

from tests.support.tokenizers import without_sglang as without_sglang  # noqa: PLC0414
