"""The messages between a driver and the program that loads a tokenizer as SGLang does."""

import msgspec

PROGRAM = "seer_sgl.plugin.tokenizer"  # run with a TokenizerSource in JSON as its argument


class TokenizerSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where engines load a tokenizer from, and how: SGLang's `ServerArgs` of these names.

    model_path, enable_multimodal: decide whether SGLang reads text through a processor; None:
    unknown, and by the model.
    """

    tokenizer_path: str
    model_path: str | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    tokenizer_mode: str = "auto"
    tokenizer_backend: str = "huggingface"
    enable_multimodal: bool | None = None


class LoadedTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of the program.

    reader: the pickled tokenizer of SGLang's scheduler, for prompts and stop strings; None without
    one. `writer`: the pickled tokenizer of its detokenizer; None: the reader. `error`: why SGLang
    cannot load the tokenizer. `unavailable`: why SGLang cannot be asked here.
    """

    reader: bytes | None = None
    writer: bytes | None = None
    error: str | None = None
    unavailable: str | None = None
