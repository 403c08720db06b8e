"""Tokenizers whose files are not `tokenizer.json`: tiktoken's ranks, sentencepiece, tekken."""

import base64
import io
import json
import shutil
from pathlib import Path
from typing import Any

from .forms import CORPUS, QWEN, TEKKEN, byte_level
from .tokenization_kimi import RESERVED


def ranks(pattern: str) -> list[bytes]:
    """Returns the tokens of a small byte-level vocabulary: bytes, then merges in their order."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    vocabulary = byte_level([pattern], []).get_vocab()
    merged = sorted((piece for piece in vocabulary if len(piece) > 1), key=vocabulary.__getitem__)
    return [
        *(bytes([byte]) for byte in range(256)),
        *(bytes(byte_of[character] for character in piece) for piece in merged),
    ]


def write_kimi(folder: Path) -> int:
    """Writes tiktoken's ranks and the tokenizer's own code."""
    tokens = ranks(QWEN)
    lines = [b"%s %d" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    shutil.copy(Path(__file__).with_name("tokenization_kimi.py"), folder)
    names = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"]
    names += ["[UNK]", "[PAD]"]
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(len(tokens) + i): {"content": name, "special": True, **flags}
        for i, name in enumerate(names)
    }
    settings: dict[str, Any] = {
        "added_tokens_decoder": added,
        "additional_special_tokens": names[2:6],
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "chat_template": "{% for m in messages %}<|im_user|>{{ m['role'] }}<|im_middle|>"
        "{{ m['content'] }}<|im_end|>{% endfor %}<|im_assistant|>assistant<|im_middle|>",
        "clean_up_tokenization_spaces": False,
        "extra_special_tokens": {},
        "model_max_length": 131072,
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(tokens) + RESERVED


def write_sentencepiece(folder: Path, settings: dict[str, Any]) -> int:
    """Writes a sentencepiece model and no `tokenizer.json`."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=written,
        model_type="bpe",
        vocab_size=450,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        character_coverage=0.99,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(written.getvalue())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return 450


def write_tekken(folder: Path) -> int:
    """Writes Mistral's `tekken.json` alone: special tokens take the first ids."""
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]"]
    names += ["[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]"]
    names += ["<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"]
    names += ["[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"]
    special = [
        {
            "rank": i,
            "token_str": names[i] if i < len(names) else f"<SPECIAL_{i}>",
            "is_control": True,
        }
        for i in range(64)
    ]
    tokens = ranks(TEKKEN)
    vocabulary = [
        {
            "rank": rank,
            "token_bytes": base64.b64encode(token).decode(),
            "token_str": token.decode(errors="replace"),
        }
        for rank, token in enumerate(tokens)
    ]
    size = len(tokens) + len(special)
    config = {
        "pattern": TEKKEN,
        "num_vocab_tokens": len(tokens),
        "default_vocab_size": size,
        "default_num_special_tokens": len(special),
        "version": "v7",
    }
    stored = {"config": config, "vocab": vocabulary, "special_tokens": special}
    (folder / "tekken.json").write_text(json.dumps(stored))
    return size
