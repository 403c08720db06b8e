"""Names of KV pages that must never be mistaken for each other.

A pool key is a hash of the tokens only: it says nothing of the model, the layout of the bytes or
the weights. Two layouts under one name gave a full hit and wrong output without an error, so all
of it goes into the name.
"""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

EDGE_BYTES = 1 << 16  # of each weight file, at both ends: a header, and weights
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


class Layout(msgspec.Struct, frozen=True):
    """How an engine's KV bytes are laid out in the pool."""

    model: str  # model_fingerprint
    dtype: str
    layout: str  # of HiCache's host pool
    page_size: int  # tokens
    tp_size: int
    pp_size: int

    def tag(self, namespace: str) -> str:
        """A short name that differs whenever any of it, or the namespace, differs."""
        facts = ":".join(map(str, (*msgspec.structs.astuple(self), namespace)))
        return f"seer-{_hash(facts.encode())}"


def model_fingerprint(path: str) -> str:
    """A name for a checkpoint by its content; of a hub id, by the id.

    Reads config.json and the ends of every weight file, not the whole of them.
    """
    folder = Path(path)
    if not folder.is_dir():
        return _hash(path.encode())
    digest = hashlib.blake2b(digest_size=8)
    files = {file for pattern in WEIGHT_FILES for file in folder.glob(pattern)}
    for file in [folder / "config.json", *sorted(files)]:
        if file.is_file():
            size = file.stat().st_size
            digest.update(f"{file.name}:{size}:".encode())
            with file.open("rb") as content:
                digest.update(content.read(EDGE_BYTES))
                content.seek(max(0, size - EDGE_BYTES))
                digest.update(content.read(EDGE_BYTES))
    return digest.hexdigest()


class WeightsName:
    """What an engine calls the weights it serves, as a namespace of KV.

    A named update (weight_version) gives engines with the same name a common namespace; one
    without a name gives this engine a namespace of its own, because nobody else can know it.
    """

    def __init__(self, version: Any, unique: str) -> None:
        self._unique = unique
        self._updates = 0
        self.current = str(version)

    def updated(self, version: str | None) -> None:
        """New weights arrived."""
        self._updates += 1
        self.current = version or f"{self._unique}.{self._updates}"


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
