"""Names of KV pages that must never be mistaken for each other.

A pool key is a hash of the tokens only: it has nothing of the model, the layout of the bytes or
the weights. Two layouts under one name gave a full hit and wrong output without an error, so all
of it goes into the name.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class KvLayout(msgspec.Struct, frozen=True):
    """How an engine's KV bytes are laid out in the pool."""

    dtype: str
    layout: str  # of HiCache's host pool
    page_size: int  # tokens
    tp_size: int
    pp_size: int

    def tag(self, namespace: str) -> str:
        """A short name that differs whenever any of it, or the namespace, differs."""
        facts = ":".join(map(str, (*msgspec.structs.astuple(self), namespace)))
        return f"seer-{_hash(facts.encode())}"


def weights_name(config: Mapping[str, Any], ranks: Sequence[Any]) -> str:
    """A name for a model as an engine runs it: equal where the same tokens make the same KV.

    config: the model's, as Hugging Face's `to_dict` gives it, with the engine's overrides: a factor
    of a rotary embedding is in no weight. Its keys that begin with an underscore name where it was
    found. ranks: a digest of the parameters of each rank.
    """
    public = {key: value for key, value in config.items() if not key.startswith("_")}
    facts = json.loads(json.dumps([public, ranks], default=_kind))  # keys of one kind can be sorted
    return _hash(json.dumps(facts, sort_keys=True).encode())


def _kind(value: object) -> str:
    return type(value).__name__


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
