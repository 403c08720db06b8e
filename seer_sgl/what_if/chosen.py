"""The keys of the simulator that `--config` and `--set` choose. Pure but for reading the file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seer_sgl.config.reading import place_of, read_tree
from seer_sgl.errors import ConfigError

OF_ENGINES = ("engine.", "pool.")
# Each row of the table has its own value.
OF_ORDERS = ("scheduling.divide", "scheduling.policy", "speculation.enabled")


def chosen_keys(config: Path | None, overrides: Sequence[str]) -> list[str]:
    """Returns the keys in alphabetical order. Raises ConfigError for a key of OF_ORDERS."""
    keys = set[str]()
    for path, some in ((config, ()), (None, overrides)):
        tree, where = read_tree(path, some)
        found = set(_keys(tree))
        for key in OF_ORDERS:
            if key in found:
                raise ConfigError(
                    f"{place_of(key, where)}{key}: leave it out, every order has its own"
                )
        keys |= found
    return sorted(keys)


def described(description: str, keys: Sequence[str]) -> str:
    """Returns the description of engines with the keys that make them other ones."""
    changed = [key for key in keys if key.startswith(OF_ENGINES)]
    if not changed:
        return description
    return f"{description}; changed by --config or --set: {', '.join(changed)}"


def _keys(tree: Mapping[str, Any], section: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{section}{name}.")
        else:
            yield f"{section}{name}"
