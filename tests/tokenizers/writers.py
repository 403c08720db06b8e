"""Writes tokenizer files in the form of released families."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from .forms import (
    DEEPSEEK,
    LLAMA3,
    O200K,
    QWEN,
    TEKKEN,
    Special,
    byte_level,
    sentencepiece_like,
)
from .other_files import write_sentencepiece

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _saved(tokenizer: Tokenizer, folder: Path, **settings: Any) -> int:
    """Writes `tokenizer.json` and `tokenizer_config.json`, and returns the number of tokens."""
    tokenizer.save(str(folder / "tokenizer.json"))
    stored = {"clean_up_tokenization_spaces": False, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(stored))
    return int(tokenizer.get_vocab_size())


def _chatml(*more: str) -> list[Special]:
    return [Special(text) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *more)]


def write_qwen(
    folder: Path,
    *,
    think: bool = False,
    more: Sequence[str] = (),
    chat_template: str = CHATML,
    **settings: Any,
) -> int:
    """Writes the files, and returns the number of tokens. `more`: special tokens."""
    tokenizer = byte_level([QWEN], _chatml(*more), normalizer=normalizers.NFC())
    if think:
        tokenizer.add_tokens(["<think>", "</think>"])
    return _saved(
        tokenizer,
        folder,
        add_bos_token=False,
        add_prefix_space=False,
        bos_token=None,
        chat_template=chat_template,
        eos_token="<|im_end|>",
        errors="replace",
        model_max_length=131072,
        pad_token="<|endoftext|>",
        split_special_tokens=False,
        tokenizer_class="Qwen2Tokenizer",
        unk_token=None,
        **settings,
    )


def write_llama2(folder: Path) -> int:
    tokenizer = sentencepiece_like([], bos="<s>", prepend=True)
    return _saved(
        tokenizer,
        folder,
        add_bos_token=True,
        add_eos_token=False,
        bos_token=_added("<s>"),
        eos_token=_added("</s>"),
        unk_token=_added("<unk>"),
        chat_template="{% for m in messages %}{{ bos_token }}[INST] {{ m['content'] }}"
        " [/INST]{% endfor %}",
        legacy=False,
        model_max_length=1000000000000000019884624838656,
        pad_token=None,
        padding_side="right",
        sp_model_kwargs={},
        tokenizer_class="LlamaTokenizer",
    )


def write_llama3(folder: Path) -> int:
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
    special = [Special(text) for text in [*names, "<|eot_id|>", "<|eom_id|>"]]
    tokenizer = byte_level([LLAMA3], special, bos="<|begin_of_text|>", ignore_merges=True)
    return _saved(
        tokenizer,
        folder,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        chat_template="{{ bos_token }}{% for m in messages %}<|start_header_id|>"
        "{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        clean_up_tokenization_spaces=True,
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=131072,
        tokenizer_class="PreTrainedTokenizerFast",
    )


def write_deepseek(folder: Path) -> int:
    names = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
    tokenizer = byte_level(DEEPSEEK, [Special(text, normalized=True) for text in names])
    return _saved(
        tokenizer,
        folder,
        add_bos_token=True,
        add_eos_token=False,
        bos_token=_added(names[0], normalized=True),
        eos_token=_added(names[1], normalized=True),
        pad_token=_added(names[1], normalized=True),
        chat_template="{{ bos_token }}{% for m in messages %}<｜User｜>{{ m['content'] }}"
        "{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}",
        legacy=True,
        model_max_length=131072,
        sp_model_kwargs={},
        unk_token=None,
        tokenizer_class="LlamaTokenizerFast",
    )


def write_mistral_tekken(folder: Path) -> int:
    special = [Special(text) for text in ("<s>", "</s>", "[INST]", "[/INST]")]
    tokenizer = byte_level([TEKKEN], special, bos="<s>", ignore_merges=True)
    return _saved(tokenizer, folder, **_mistral("PreTrainedTokenizerFast"))


def write_mistral_pieces(folder: Path) -> int:
    tokenizer = sentencepiece_like([Special("[INST]"), Special("[/INST]")], bos="<s>", prepend=True)
    return _saved(tokenizer, folder, **_mistral("LlamaTokenizer"))


def _mistral(tokenizer_class: str) -> dict[str, Any]:
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": "{{ bos_token }}{% for m in messages %}[INST]{{ m['content'] }}[/INST]"
        "{% endfor %}",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1000000000000000019884624838656,
        "tokenizer_class": tokenizer_class,
    }


def write_gemma(folder: Path, *, more: Sequence[str] = (), **settings: Any) -> int:
    """Writes the files, and returns the number of tokens. `more`: special tokens."""
    names = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", *more)
    special = [Special(text) for text in names]
    tokenizer = sentencepiece_like(special, bos="<bos>", prepend=False)
    return _saved(
        tokenizer,
        folder,
        add_bos_token=True,
        add_eos_token=False,
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template="{{ bos_token }}{% for m in messages %}<start_of_turn>"
        "{{ m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
        "<start_of_turn>model\n",
        sp_model_kwargs={},
        spaces_between_special_tokens=False,
        tokenizer_class="GemmaTokenizer",
        use_default_system_prompt=False,
        **settings,
    )


def write_glm(folder: Path) -> int:
    names = ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>"]
    tokenizer = byte_level([LLAMA3], [Special(text) for text in names])
    return _saved(
        tokenizer,
        folder,
        chat_template="[gMASK]<sop>{% for m in messages %}<|{{ m['role'] }}|>\n"
        "{{ m['content'] }}{% endfor %}<|assistant|>",
        do_lower_case=False,
        eos_token="<|user|>",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=128000,
        pad_token="<|endoftext|>",
        remove_space=False,
        tokenizer_class="PreTrainedTokenizer",
    )


def write_gpt_oss(folder: Path) -> int:
    names = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|start|>", "<|message|>"]
    special = [Special(text) for text in [*names, "<|end|>", "<|channel|>", "<|call|>"]]
    tokenizer = byte_level([O200K], special, ignore_merges=True)
    return _saved(
        tokenizer,
        folder,
        bos_token="<|startoftext|>",
        eos_token="<|return|>",
        pad_token="<|endoftext|>",
        chat_template="{% for m in messages %}<|start|>{{ m['role'] }}<|message|>"
        "{{ m['content'] }}<|end|>{% endfor %}<|start|>assistant",
        model_input_names=["input_ids", "attention_mask"],
        tokenizer_class="PreTrainedTokenizerFast",
    )


def write_phi3(folder: Path) -> int:
    # In Phi-3 the white space after these tokens belongs to them.
    names = ("<|endoftext|>", "<|assistant|>", "<|end|>", "<|user|>")
    special = [Special(text, rstrip=text != "<|endoftext|>") for text in names]
    tokenizer = sentencepiece_like(special, bos=None, prepend=True)
    return _saved(
        tokenizer,
        folder,
        add_bos_token=False,
        add_eos_token=False,
        bos_token="<s>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        unk_token="<unk>",
        chat_template="{% for m in messages %}<|user|>\n{{ m['content'] }}<|end|>\n"
        "{% endfor %}<|assistant|>\n",
        legacy=False,
        padding_side="left",
        sp_model_kwargs={},
        tokenizer_class="LlamaTokenizer",
    )


def write_phi4(folder: Path) -> int:
    tokenizer = byte_level([LLAMA3], _chatml("<|im_sep|>"))
    return _saved(
        tokenizer,
        folder,
        add_prefix_space=False,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        chat_template=CHATML.replace("\n{{ message['content']", "<|im_sep|>{{ message['content']"),
        model_max_length=16384,
        tokenizer_class="GPT2Tokenizer",
    )


def _added(text: str, *, normalized: bool = False) -> dict[str, Any]:
    flags = {"lstrip": False, "normalized": normalized, "rstrip": False, "single_word": False}
    return {"__type": "AddedToken", "content": text, **flags}


def write_mistral_model(folder: Path) -> int:
    return write_sentencepiece(folder, _mistral("LlamaTokenizer"))


def write_qwen3(folder: Path) -> int:
    return write_qwen(folder, think=True)
