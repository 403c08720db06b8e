"""Text in and out, through the model's own tokenizer."""

from array import array
from typing import Any

from seer_sgl.errors import ConfigError
from seer_sgl.types import token_array


class Tokenizer:
    """A Hugging Face tokenizer from a folder or hub id. Raises ConfigError if it cannot load."""

    def __init__(self, path: str) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"no tokenizer in {path}: {reason}") from None

    @property
    def vocab_size(self) -> int:
        """Ids are below this, added tokens included."""
        return len(self._tokenizer)

    def encode(self, text: str) -> "array[int]":
        """Ids of a prompt, with the special tokens the tokenizer adds by itself."""
        return token_array(self._tokenizer.encode(text))

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> "array[int]":
        """Ids of a chat up to where the assistant begins. Raises ValueError if it does not fit."""
        try:
            ids = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception as error:  # templates are programs: jinja2 errors, KeyError, TypeError
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"chat template: {reason}") from None
        return token_array(ids)

    def stop_len(self, text: str) -> int:
        """Tokens of a stop string, as SGLang counts them (SamplingParams.normalize)."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))
