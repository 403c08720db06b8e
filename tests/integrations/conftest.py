"""Fixtures of the tests of trainers. No test here starts a process to load a tokenizer."""

from tests.support.tokenizers import without_sglang as without_sglang  # noqa: PLC0414
