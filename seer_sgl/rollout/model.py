"""Reads facts from a model folder before any engine starts, so that mistakes show early."""

from pathlib import Path

import msgspec

from seer_sgl.config import Config
from seer_sgl.errors import ConfigError
from seer_sgl.link.tokenizer import TokenizerSource

# SGLang flags that decide how its tokenizer is loaded, besides those with a key of their own.
TOKENIZER_FLAGS = ("revision", "tokenizer-mode", "tokenizer-backend")


class ModelFacts(msgspec.Struct, frozen=True):
    """Fields of a model's `config.json` or its `text_config`; None: the field is missing."""

    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    hidden_size: int | None = None
    head_dim: int | None = None
    image_token_id: int | None = None  # the placeholder of an image; not in `text_config`
    image_token_index: int | None = None  # its name in other models
    media_placeholder_token_id: int | None = None
    text_config: "ModelFacts | None" = None

    @property
    def image_token(self) -> int | None:
        """The id of an image's placeholder; None if it is unknown."""
        names = (self.image_token_id, self.image_token_index, self.media_placeholder_token_id)
        return next((token for token in names if token is not None), None)

    def least_kv_bytes_per_token(self) -> int | None:
        """Returns the KV bytes per token at 8 bits per number; None if fields are missing."""
        heads = self.num_key_value_heads or self.num_attention_heads
        size = self.head_dim
        if size is None and self.hidden_size and self.num_attention_heads:
            size = self.hidden_size // self.num_attention_heads
        if heads is None or size is None or self.num_hidden_layers is None:
            return None
        return 2 * self.num_hidden_layers * heads * size


def model_facts(path: str | None) -> ModelFacts:
    """Returns the facts of a model folder; empty for a hub id or no model.

    Raises ConfigError if the folder's `config.json` is invalid or cannot be read.
    """
    file = Path(path or "") / "config.json"
    try:
        if path is None or not file.is_file():
            return ModelFacts()
        facts = msgspec.json.decode(file.read_bytes(), type=ModelFacts)
    except OSError as error:
        raise ConfigError(f"model.path: {file}: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"model.path: {file}: {error}") from error
    if facts.text_config is None:
        return facts
    return msgspec.structs.replace(facts.text_config, image_token_id=facts.image_token)


def tokenizer_source(config: Config) -> TokenizerSource | None:
    """Returns how the engines of a config load their tokenizer; None if it names no model."""
    model, flags = config.model, config.engines.flags()
    path = model.tokenizer_path or model.path
    if path is None:
        return None
    own = {name.replace("-", "_"): str(flags[name]) for name in TOKENIZER_FLAGS if name in flags}
    multimodal = flags.get("enable-multimodal")
    return TokenizerSource(
        tokenizer_path=path,
        model_path=model.path,
        trust_remote_code=model.trust_remote_code,
        enable_multimodal=None if multimodal is None else bool(multimodal),
        **own,
    )
