"""vLLM's helper that draws names."""

import uuid


def random_uuid() -> str:
    """Returns 32 random hexadecimal digits."""
    return uuid.uuid4().hex
