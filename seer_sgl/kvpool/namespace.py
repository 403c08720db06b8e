"""Names that separate the KV pages of different models, layouts and weights.

A pool key is a hash of the tokens only; it does not contain the model, the byte layout or the
weights. Two layouts under one name give a full hit and wrong output without an error, so the name
contains all three.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class KvLayout(msgspec.Struct, frozen=True):
    """The layout of an engine's KV bytes in the pool."""

    dtype: str
    layout: str  # of HiCache's host pool
    page_size: int  # tokens
    tp_size: int
    pp_size: int

    def tag(self, namespace: str) -> str:
        """Returns a short name that differs if any field or the namespace differs."""
        facts = ":".join(map(str, (*msgspec.structs.astuple(self), namespace)))
        return f"seer-{_hash(facts.encode())}"


def weights_name(config: Mapping[str, Any], ranks: Sequence[Any]) -> str:
    """Returns a name for a loaded model, equal if the same tokens give the same KV.

    config: from Hugging Face's `to_dict`, with the engine's overrides, because some parameters (a
    factor of a rotary embedding) are in no weight. Keys that begin with an underscore are ignored:
    they name the source of the model. ranks: a digest of the parameters per rank.
    """
    public = {key: value for key, value in config.items() if not key.startswith("_")}
    # JSON makes all keys strings, which can be sorted.
    facts = json.loads(json.dumps([public, ranks], default=_kind))
    return _hash(json.dumps(facts, sort_keys=True).encode())


def _kind(value: object) -> str:
    return type(value).__name__


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
