"""The tokenizer of the task: one id per word, which includes the space before it.

transformers loads every Qwen2 checkpoint with its own Qwen2Tokenizer, a byte-level BPE
(``MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS`` in transformers 5), and would silently replace a
word-level model. This BPE has no merges and all words are added tokens, which also work there.
Text outside the vocabulary is dropped.

No post-processor adds ``<bos>``: a prompt's text and the chat template contain it. Encoding with or
without special tokens therefore gives the same ids, and ``<bos>`` cannot appear twice. ``<think>``
and ``</think>`` are ordinary words, so decoding without special tokens keeps them.
"""

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
)

from bench.reasoner import task

CONTEXT_TOKENS = 8192  # prompt and response together

# The template uses the last message only; the model is not trained on earlier turns.
CHAT_TEMPLATE = (
    "<bos> {{ messages[-1]['content'] | trim }}{% if add_generation_prompt %} <think>{% endif %}"
)


def build() -> Tokenizer:
    """Returns a tokenizer with the ids of ``task.vocabulary``."""
    vocab = {spaced(word): id_ for word, id_ in task.vocabulary().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(word, special=True, normalized=False, lstrip=True) for word in task.SPECIAL]
    )
    tokenizer.add_tokens(
        [AddedToken(word, normalized=False) for word in vocab if word not in task.SPECIAL]
    )
    return tokenizer


def spaced(word: str) -> str:
    return word if word in task.SPECIAL else f" {word}"


def save(folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    build().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_TOKENS,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
