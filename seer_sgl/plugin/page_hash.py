"""The hash that names the pages of the KV pool, in Python.

SGLang has it in C++ and builds it at its first call: some 20 s, in the middle of a rollout, with a
C++ compiler that a machine may lack. The names here are equal, byte for byte. They cost 0.5 to 0.8
us per page instead of 0.1 to 0.2 (docs/decisions.md), which is a millisecond per 32k tokens.
"""

import hashlib
from array import array

import numpy as np

from .hook import Hook


class PageHash:
    """Stands in for SGLang's extension (mem_cache/cpp_utils/hash_binding.cpp)."""

    def get_hash(  # noqa: PLR0917 (SGLang's signature)
        self,
        tokens: "array[int]",
        length: int,
        unit: int,
        is_bigram: bool,
        prior: bytes | None,
        page_size: int | None,
    ) -> str | list[str]:
        """Returns the SHA-256 of the prior digest and the tokens, in hexadecimal digits.

        tokens: of 4 or 8 bytes. length: in units; a unit is a bigram, which overlaps the next one,
        or has `unit` tokens. page_size: units per page, where the digest of a page is the prior of
        the next; None: one digest for all tokens. Raises IndexError for a token beyond 32 bits.
        """
        words = np.frombuffer(tokens, dtype=np.uint32 if tokens.itemsize == 4 else np.uint64)
        words = words[: length + 1 if is_bigram and length else length * unit]
        if words.itemsize == 8 and words.size and words.max() > np.iinfo(np.uint32).max:
            raise IndexError("token id does not fit in uint32")  # as pybind11 does
        if is_bigram:
            words, unit = np.stack((words[:-1], words[1:]), axis=1).reshape(-1), 2
        content = words.astype("<u4", copy=False).tobytes()
        digest = prior or b""
        if page_size is None:
            return hashlib.sha256(digest + content).hexdigest()
        names, page = [], 4 * unit * page_size
        for start in range(0, len(content), page):
            sha = hashlib.sha256(digest + content[start : start + page])
            digest = sha.digest()
            names.append(sha.hexdigest())
        return names


_HASH = PageHash()


def page_hash() -> PageHash:
    """Hook instead of `_load_native_hash_module`: returns the hash in Python."""
    return _HASH


def hooks() -> list[Hook]:
    return [
        Hook(
            "sglang.srt.mem_cache.cpp_utils.native_hash._load_native_hash_module",
            page_hash,
            "replace",
            "SGLang compiles its hash of page names at the first call, in the middle of a rollout, "
            "and fails without a C++ compiler; the same names are computed in Python.",
            "The wheel of SGLang has its page hash compiled.",
        )
    ]
