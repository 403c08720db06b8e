"""The parts of `tokenizer.json` files in the forms that released models use, trained on few texts.

Patterns and components are those of the models' public tokenizer files; vocabularies are our own.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = (
    "The quick brown fox jumps over the lazy dog, isn't it? We'll see what they've done; I'm sure.",
    "def main(argv: list[str]) -> int:\n    for i in range(10):\n        print(i, argv[i])\n\n",
    "x = 12345; y = 3.14159\n\n\n\tif (x >= 2024) { return 100; }  // done\r\n",
    "日本語のテキストと中文的文本，还有한국어 문장입니다。",
    "Ünïcödé naïve café résumé, straße, ÎLE; Привет, мир! مرحبا שלום नमस्ते",
    "a\n b\n  c\n   d\n\na\n\nb   c     d",
    "👍 🇩🇪 👩‍👩‍👧‍👦",
)
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace(r"|\p{N}{1,3}", r"|\p{N}")
DEEPSEEK = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
VOCABULARY = 700  # tokens of a trained vocabulary, without added ones


class Special(NamedTuple):
    """A special token. `rstrip`: it swallows the white space that follows it."""

    text: str
    rstrip: bool = False
    normalized: bool = False


def byte_level(
    patterns: Sequence[str],
    special: Sequence[Special],
    *,
    bos: str | None = None,
    normalizer: Any = None,
    ignore_merges: bool = False,
) -> Tokenizer:
    """Returns a byte-level BPE; special tokens come after its vocabulary.

    bos: added before each prompt.
    """
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    add(tokenizer, special)
    level: Any = processors.ByteLevel(trim_offsets=False)
    if bos is not None:
        level = processors.Sequence([level, _with_bos(tokenizer, bos)])
    tokenizer.post_processor = level
    return tokenizer


def sentencepiece_like(special: Sequence[Special], *, bos: str | None, prepend: bool) -> Tokenizer:
    """Returns a BPE over `▁` with bytes as a fallback, as converted from sentencepiece models.

    prepend: a space is put before each text and stripped from it (Llama); otherwise the spaces are
    split first (Gemma).
    """
    unknown, *others = ["<unk>", "<s>", "</s>"]
    first = [unknown, *others, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prepend else spaces
    )
    # The trainer needs words; the trained tokenizer splits nothing, or spaces only.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prepend:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer = _without_byte_specials(tokenizer)
    if not prepend:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    add(tokenizer, special)
    if bos is not None:
        tokenizer.post_processor = _with_bos(tokenizer, bos)
    return tokenizer


def _without_byte_specials(tokenizer: Tokenizer) -> Tokenizer:
    """Returns the tokenizer whose byte tokens are ordinary tokens, not special ones."""
    stored = json.loads(tokenizer.to_str())
    stored["added_tokens"] = [
        token for token in stored["added_tokens"] if not token["content"].startswith("<0x")
    ]
    stored["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(stored))


def _with_bos(tokenizer: Tokenizer, bos: str) -> Any:
    return processors.TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos}:1 $B:1",
        special_tokens=[(bos, tokenizer.token_to_id(bos))],
    )


def add(tokenizer: Tokenizer, special: Sequence[Special]) -> None:
    tokenizer.add_special_tokens(
        [
            AddedToken(token.text, special=True, rstrip=token.rstrip, normalized=token.normalized)
            for token in special
        ]
    )
