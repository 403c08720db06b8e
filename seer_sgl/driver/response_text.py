"""The text of a response, also while its tokens arrive, as SGLang's detokenizer makes it."""

from collections.abc import Sequence
from typing import Any

from seer_sgl.types import Sampling

from .tokenizer import Tokenizer

# SGLang decodes a response together with the last tokens of its prompt
# (schedule_batch.INIT_INCREMENTAL_DETOKENIZATION_OFFSET): some tokenizers drop a leading space.
CONTEXT_TOKENS = 5
INCOMPLETE = "\ufffd"  # the end of a text that stops inside a character


class ResponseText:
    """The text of one response (`DetokenizerManager._decode_batch_token_id_output`)."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        self._tokenizer = tokenizer
        self._skip_special = sampling.skip_special_tokens
        self._trim = not sampling.no_stop_trim
        self._context = list(prompt_ids[-CONTEXT_TOKENS:])  # decoded again with the new tokens
        self._pending: list[int] = []  # tokens after the context that are not final text yet
        self._final = ""

    def add(self, ids: Sequence[int]) -> str:
        """Adds tokens and returns the text so far, without an incomplete character at its end."""
        self._pending.extend(ids)
        new = self._new(self._pending)
        if new and not new.endswith(INCOMPLETE):
            self._final += new
            self._context, self._pending = self._pending, []
            return self._final
        return self._final + new.partition(INCOMPLETE)[0]

    def end(self, ids: Sequence[int], matched: int | str | None) -> str:
        """Adds the last tokens and returns the whole text, without the matched stop."""
        self._pending.extend(ids)
        pending = self._pending
        if self._trim and isinstance(matched, int):
            pending = pending[:-1]
        text = self._final + self._new(pending)
        if isinstance(matched, str):
            before, found, _ = text.partition(matched)
            return before if self._trim else before + found
        return text

    def _new(self, pending: list[int]) -> str:
        """Returns the text of tokens that follow the context."""
        known = self._decode(self._context)
        return self._decode(self._context + pending)[len(known) :]

    def _decode(self, ids: Any) -> str:
        return self._tokenizer.response_text(ids, self._skip_special) if ids else ""
