"""Converts between text and token ids with the model's own tokenizer."""

import functools
import logging
from array import array
from pathlib import Path
from typing import Any

from seer_sgl.errors import ConfigError
from seer_sgl.types import token_array

# A folder with a tokenizer has at least one of these files.
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "*.model", "tiktoken*", "*.tiktoken")


def load_tokenizer(path: str, trust_remote_code: bool = False) -> "Tokenizer | None":
    """Returns the Hugging Face tokenizer of a folder or hub id; None for a folder without one.

    `trust_remote_code`: whether the tokenizer's own Python code may run. Raises ConfigError if the
    tokenizer cannot be loaded.
    """
    # A driver needs no torch, and transformers warns about its absence on standard error.
    logging.getLogger("transformers").addFilter(_is_not_about_torch)
    from transformers import AutoTokenizer

    folder = Path(path)
    if folder.is_dir() and not any(any(folder.glob(name)) for name in TOKENIZER_FILES):
        return None
    try:
        # Without a value transformers would prompt at the terminal.
        loaded = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        return Tokenizer(loaded)
    except Exception as error:  # its files are data for many readers: KeyError, TypeError, ...
        if "trust_remote_code=True" in str(error) and not trust_remote_code:
            raise ConfigError(
                f"model.trust_remote_code: the tokenizer in {path} has its own Python code, "
                f"which runs only if this is true"
            ) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"no tokenizer in {path}: {reason}") from error


def _is_not_about_torch(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("PyTorch was not found")


def _byte_alphabet() -> dict[str, int]:
    """Returns the byte of each character of GPT-2's alphabet."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTES = _byte_alphabet()


class Tokenizer:
    """A Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

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
        try:
            ids = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception as error:  # templates are programs: jinja2 errors, KeyError, TypeError
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"chat template: {reason}") from error
        return token_array(ids)

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

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        """Returns the text of token ids."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))
