"""Seeds of the parts of a run. Pure."""

import hashlib


def derived_seed(seed: int, *path: int | str) -> int:
    """Returns a 63-bit seed for one part of a seeded run; `path` identifies the part.

    It depends on nothing else, so that neither the order in which prompts arrive nor a repeat
    changes it.
    """
    name = "/".join(map(str, (seed, *path)))
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
