"""What a model folder says before any engine is up, so that mistakes cost no start-up."""

from pathlib import Path

import msgspec

from seer_sgl.errors import ConfigError


class ModelFacts(msgspec.Struct, frozen=True):
    """From `config.json` (or its `text_config`). None: it does not say."""

    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    text_config: "ModelFacts | None" = None


def model_facts(path: str | None) -> ModelFacts:
    """Facts of a model folder; empty for a hub id or no model. Raises ConfigError if broken."""
    file = Path(path or "") / "config.json"
    if path is None or not file.is_file():
        return ModelFacts()
    try:
        facts = msgspec.json.decode(file.read_bytes(), type=ModelFacts)
    except msgspec.DecodeError as error:
        raise ConfigError(f"model.path: {file}: {error}") from None
    return facts.text_config or facts
