"""The config: a tree of sections (tree.py), read from YAML (reading.py) and checked
(validate.py)."""

import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from seer_sgl.errors import ConfigError

from .engines import (
    Cores,
    Engines,
    EnginesConfig,
    ExternalEngines,
    FlagValue,
    LocalEngines,
    RayEngines,
    StartedEngines,
)
from .reading import convert, place_of, plain, read_tree
from .ready import own_files, ready_config
from .section import Section, with_values
from .tree import (
    UNDIVIDED,
    Config,
    DraftConfig,
    FleetConfig,
    ImagesConfig,
    KvPoolConfig,
    ModelConfig,
    RolloutConfig,
    SchedulingConfig,
    ServerConfig,
    bytes_of,
)
from .validate import validate

__all__ = [
    "UNDIVIDED",
    "Config",
    "Cores",
    "DraftConfig",
    "Engines",
    "EnginesConfig",
    "ExternalEngines",
    "FlagValue",
    "FleetConfig",
    "ImagesConfig",
    "KvPoolConfig",
    "LocalEngines",
    "ModelConfig",
    "RayEngines",
    "RolloutConfig",
    "SchedulingConfig",
    "Section",
    "ServerConfig",
    "StartedEngines",
    "bytes_of",
    "convert",
    "load",
    "load_ready",
    "parse",
    "place_of",
    "plain",
    "read_tree",
    "retyped",
    "with_values",
]


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Reads a YAML file (None: all defaults) and applies `key.path=value` overrides.

    Raises ConfigError with one line that names the key and the place where it was set.
    """
    return parse(*read_tree(path, overrides))


def load_ready(name: str, overrides: Sequence[str] = ()) -> Config:
    """Returns a config that comes with seer-sgl, such as `cpu-seer`, under `key.path=value`
    overrides. Its model and prompts are found from any folder. Raises ConfigError.
    """
    path = ready_config(name)
    return load(path, [*own_files(path), *overrides])


def parse(tree: Mapping[str, Any], where: Mapping[str, str] | None = None) -> Config:
    """Returns a checked Config from plain mappings. `where`: key path -> where it was set.

    Raises ConfigError if a value is invalid.
    """
    config = convert(tree, where or {}, Config)
    for key, problem in validate(config):
        raise ConfigError(f"{place_of(key, where or {})}{key}: {problem}")
    return config


def retyped(config: Config) -> Config:
    """Returns an equal Config, with values of the right types: a struct that Python made has any.

    Paths become text, and numbers of numpy those of Python. Raises ConfigError if another value has
    a wrong type.
    """
    tree = msgspec.to_builtins(config, builtin_types=(bytes,), enc_hook=_builtin)
    return convert(tree, {}, type(config))


def _builtin(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return repr(value).encode()  # no text, which many keys take: `convert` names the key
