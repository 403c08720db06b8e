"""Converts between text and token ids with the model's own tokenizer."""

import functools
from array import array
from collections.abc import Sequence
from typing import Any

from seer_sgl.errors import first_line
from seer_sgl.types import token_array


def _byte_alphabet() -> dict[str, int]:
    """Returns the byte of each character of GPT-2's alphabet."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTES = _byte_alphabet()


class Tokenizer:
    """A Hugging Face tokenizer.

    `writer`: the tokenizer that turns responses into text, if it is another one: SGLang reads
    prompts of multimodal models through their processor.
    """

    def __init__(self, tokenizer: Any, writer: Any = None) -> None:
        self._tokenizer = tokenizer
        self._writer = tokenizer if writer is None else writer

    @property
    def vocab_size(self) -> int:
        """The number of token ids, added tokens included."""
        return len(self._tokenizer)

    def encode(self, text: str) -> "array[int]":
        """Returns the ids of a prompt, with the special tokens that the tokenizer adds."""
        return token_array(self._tokenizer.encode(text))

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> "array[int]":
        """Returns the ids of a chat, up to the start of the assistant's answer.

        Raises ValueError if the messages do not fit the template.
        """
        return token_array(self._templated(messages, tokenize=True))

    def chat_text(self, messages: list[dict[str, Any]]) -> str:
        """Returns the text whose ids `apply_chat_template` returns. Raises ValueError like it."""
        return str(self._templated(messages, tokenize=False))

    def _templated(self, messages: list[dict[str, Any]], *, tokenize: bool) -> Any:
        try:
            return self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=tokenize, return_dict=False
            )
        except Exception as error:  # templates are programs: jinja2 errors, KeyError, TypeError
            raise ValueError(f"chat template: {first_line(error)}") from error

    def stop_len(self, text: str) -> int:
        """Returns the tokens of a stop string, counted as in SGLang's SamplingParams.normalize."""
        return len(self.encode_part(text))

    def encode_part(self, text: str) -> "array[int]":
        """Returns the ids of a text without the special tokens that begin or end a prompt."""
        return token_array(self._tokenizer.encode(text, add_special_tokens=False))

    def token_bytes(self, token: int) -> bytes | None:
        """Returns the bytes of a token; None for a special one and for tokenizers without bytes.

        A token may be a part of a character. Source: SGLang's `token_id_to_bytes`.
        """
        if not self._byte_level:
            return None
        piece = self._tokenizer.convert_ids_to_tokens(token)
        try:
            return bytes(_BYTES[character] for character in piece or "") or None
        except KeyError:
            return None

    @functools.cached_property
    def _byte_level(self) -> bool:
        """Whether tokens are spelled in GPT-2's alphabet of bytes (`_is_byte_level_tokenizer`)."""
        stated = getattr(self._tokenizer, "is_byte_level", None)
        if isinstance(stated, bool):
            return stated
        size = len(self._tokenizer.get_vocab())
        samples = (0, 1, 2, 3, size // 2, size - 2)
        pieces = [self._tokenizer.convert_ids_to_tokens(s) for s in samples if 0 <= s < size]
        return all(character in _BYTES for piece in pieces for character in piece or "")

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids, special tokens included.

        Without any option, as in SGLang's scheduler (`Req.tail_str`): some tokenizers with code of
        their own decode otherwise with options.
        """
        return str(self._tokenizer.decode(list(ids)))

    def response_text(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Returns the text of a response (`DetokenizerManager._grouped_batch_decode`).

        A token beyond the vocabulary is written like token 0 (`_clamp_decode_ids`).
        """
        ids = [token if 0 <= token < self._writable else 0 for token in ids]
        if getattr(self._writer, "is_fast", False):
            return str(self._writer.decode(ids, skip_special_tokens=skip_special_tokens))
        hidden = self._special_ids if skip_special_tokens else frozenset()
        return str(self._writer.decode([token for token in ids if token not in hidden]))

    @functools.cached_property
    def _writable(self) -> int:
        return len(self._writer)

    @functools.cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self._writer.all_special_ids or ())

    def served_tokens(self, text: str, add_special_tokens: bool) -> list[int]:
        """Returns the reply of SGLang's `/v1/tokenize`."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def served_text(self, ids: Sequence[int]) -> str:
        """Returns the reply of SGLang's `/v1/detokenize`, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
