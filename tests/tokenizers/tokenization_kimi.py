"""A tokenizer with code of its own over tiktoken, in the form of Kimi's: copied into its folder.

Like Kimi's it reads without options by tiktoken alone, and with any option as transformers does.
"""

from pathlib import Path
from typing import Any

import tiktoken
from tiktoken.load import load_tiktoken_bpe
from transformers import PreTrainedTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
RESERVED = 16  # special tokens after the vocabulary


class TikTokenTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    """Kimi's class has this name; SGLang and transformers find it by `auto_map`."""

    vocab_files_names = {"vocab_file": "tiktoken.model"}  # noqa: RUF012 (of transformers)
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, vocab_file: str, added_tokens_decoder: Any = None, **options: Any) -> None:
        ranks = load_tiktoken_bpe(vocab_file)
        named = {i: token.content for i, token in (added_tokens_decoder or {}).items()}
        numbers = range(len(ranks), len(ranks) + RESERVED)
        self.special_tokens = {named.get(i, f"<|reserved_token_{i}|>"): i for i in numbers}
        self.model = tiktoken.Encoding(
            name=Path(vocab_file).name,
            pat_str=PATTERN,
            mergeable_ranks=ranks,
            special_tokens=self.special_tokens,
        )
        self.byte_encoder = bytes_to_unicode()
        self.byte_decoder = {character: byte for byte, character in self.byte_encoder.items()}
        self.decoder = {
            i: "".join(self.byte_encoder[byte] for byte in self.model.decode_single_token_bytes(i))
            for i in range(self.model.n_vocab)
        }
        self.encoder = {piece: i for i, piece in self.decoder.items()}
        super().__init__(**options)

    def encode(self, text: str, **options: Any) -> list[int]:
        if options:
            return list(super().encode(text, **options))
        return self.model.encode(text, allowed_special="all")

    def decode(self, token_ids: Any, **options: Any) -> str:
        if options:
            return str(super().decode(token_ids, **options))
        return self.model.decode([token_ids] if isinstance(token_ids, int) else token_ids)

    @property
    def vocab_size(self) -> int:
        return self.model.n_vocab

    def get_vocab(self) -> dict[str, int]:
        return self.encoder

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return [self.decoder[token] for token in self.encode(text)]

    def _convert_token_to_id(self, token: str) -> int | None:
        return self.encoder.get(token)

    def _convert_id_to_token(self, index: int) -> str | None:
        return self.decoder.get(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return bytes(self.byte_decoder[c] for c in "".join(tokens)).decode("utf-8", "replace")
