"""The sampling parameters that a model wants in chats, as SGLang finds them."""

from pathlib import Path
from typing import Any

import msgspec

from .bodies import DEFAULTS

FILE = "generation_config.json"


def sampling_defaults(model_path: str) -> dict[str, float] | None:
    """Returns the parameters in a model's generation config; None if it cannot be read.

    `model_path`: a folder or a hub id. Source: ModelConfig.get_default_sampling_params.
    """
    from transformers.utils import cached_file

    try:
        file = cached_file(model_path, FILE, _raise_exceptions_for_missing_entries=False)
        if file is None:
            return {}
        found = msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Any])
    except (OSError, ValueError, msgspec.DecodeError):
        return None
    return {
        name: value
        for name, value in found.items()
        if name in DEFAULTS and isinstance(value, int | float)
    }
