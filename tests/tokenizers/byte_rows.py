"""Small byte-level tokenizers that transformers 5 reads otherwise than SGLang does."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from transformers.convert_slow_tokenizer import bytes_to_unicode


class ByteRow(NamedTuple):
    """The class and the kind of model that the files name, and whether `ByteLevel` splits words."""

    model_type: str
    tokenizer_class: str
    splits: bool

    def make(self, parent: Path) -> Path:
        """Writes a tokenizer of 256 bytes, one merge and `<bos>`, and returns its folder."""
        folder = parent / f"{self.model_type}-{self.tokenizer_class}"
        folder.mkdir(parents=True)
        vocabulary = {character: byte for byte, character in bytes_to_unicode().items()}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        model = {"type": "BPE", "vocab": vocabulary | {"Ċa": 256}, "merges": [["Ċ", "a"]]}
        stored: dict[str, Any] = {
            "version": "1.0",
            "added_tokens": [{"id": 257, "content": "<bos>", "special": True, **flags}],
            "normalizer": None,
            "pre_tokenizer": {**level, "use_regex": self.splits},
            "post_processor": None,
            "decoder": {**level, "use_regex": True},
            "model": model,
        }
        settings = {
            "tokenizer_class": self.tokenizer_class,
            "bos_token": "<bos>",
            "add_bos_token": True,
        }
        (folder / "tokenizer.json").write_text(json.dumps(stored))
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "config.json").write_text(json.dumps({"model_type": self.model_type}))
        return folder


ROWS = (
    ByteRow("qwen2", "Qwen2Tokenizer", splits=False),
    ByteRow("qwen2", "LlamaTokenizerFast", splits=True),
    ByteRow("deepseek_v3", "LlamaTokenizerFast", splits=True),
    ByteRow("llama", "LlamaTokenizerFast", splits=True),
)
