"""Loads a tokenizer as SGLang's processes do: `python -m seer_sgl.plugin.tokenizer SOURCE`.

A driver starts this program once. SGLang repairs what transformers breaks in some tokenizers, so
only SGLang's own functions read text as an engine does. The driver itself does not import SGLang,
which changes transformers and the environment of the process that imports it.
SOURCE is a TokenizerSource in JSON; a LoadedTokenizer in msgpack is written to standard output.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from seer_sgl.link.tokenizer import LoadedTokenizer, TokenizerSource
from seer_sgl.processes.child import end_with_parent

# Parts of the keys that a `config.json` has only if its model reads more than text.
MULTIMODAL = (
    "vision",
    "visual",
    "image",
    "video",
    "audio",
    "sound",
    "text_config",
    "llm_config",
    "language_config",
    "thinker",
    "speech",
)


def load(source: TokenizerSource) -> LoadedTokenizer:
    """Returns the tokenizers of an engine that is started with `source`, or why there are none."""
    try:
        import cloudpickle

        from seer_sgl.torchvision_schemas import define_missing_schemas

        define_missing_schemas()
        from sglang.srt.utils.hf_transformers_utils import (
            get_processor,
            get_tokenizer,
            get_tokenizer_from_processor,
        )
    except Exception as error:
        return LoadedTokenizer(unavailable=_reason(error))
    options = {
        "tokenizer_mode": source.tokenizer_mode,
        "trust_remote_code": source.trust_remote_code,
        "revision": source.revision,
        "tokenizer_backend": source.tokenizer_backend,
    }
    try:
        writer = get_tokenizer(source.tokenizer_path, **options)
        reader = writer
        if _is_multimodal(source):
            processor = get_processor(
                source.tokenizer_path, model_name=source.model_path, **options
            )
            reader = get_tokenizer_from_processor(processor)
    except Exception as error:  # its files are data for many readers: KeyError, TypeError, ...
        return LoadedTokenizer(error=_reason(error))
    try:
        return LoadedTokenizer(
            reader=cloudpickle.dumps(reader),
            writer=None if reader is writer else cloudpickle.dumps(writer),
        )
    except Exception as error:
        why = f"{type(writer).__name__} cannot be copied to another process: {_reason(error)}"
        return LoadedTokenizer(unavailable=why)


def _is_multimodal(source: TokenizerSource) -> bool:
    """Returns whether SGLang loads a processor for the model (`ModelConfig.is_multimodal`)."""
    if source.model_path is None:
        return False
    file = Path(source.model_path) / "config.json"
    if file.is_file() and not _may_be_multimodal(json.loads(file.read_bytes())):
        return False
    from sglang.srt.configs.model_config import ModelConfig  # another 1.5 s

    config = ModelConfig(
        source.model_path,
        trust_remote_code=source.trust_remote_code,
        revision=source.revision,
        enable_multimodal=source.enable_multimodal,
    )
    return bool(config.is_multimodal)


def _may_be_multimodal(config: Any) -> bool:
    if isinstance(config, list):
        return any(map(_may_be_multimodal, config))
    if not isinstance(config, dict):
        return False
    return any(
        any(part in key for part in MULTIMODAL) or _may_be_multimodal(value)
        for key, value in config.items()
    )


def _reason(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def main(source: str) -> None:
    """Loads the tokenizer and writes the reply."""
    end_with_parent()
    # What SGLang or a tokenizer's own code prints is not part of the reply.
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with reply:
        loaded = load(msgspec.json.decode(source, type=TokenizerSource))
        reply.write(msgspec.msgpack.encode(loaded))


if __name__ == "__main__":
    main(sys.argv[1])
