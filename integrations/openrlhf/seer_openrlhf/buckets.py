"""Parameters in buckets of a bounded size. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any


def buckets(
    parameters: Iterable[tuple[str, Any]], most_bytes: int
) -> Iterator[list[tuple[str, Any]]]:
    """Yields the parameters in order, together up to `most_bytes`; a larger one comes alone.

    A parameter of ZeRO-3 is counted with all its shards (`ds_numel`).
    """
    bucket: list[tuple[str, Any]] = []
    left = most_bytes
    for name, parameter in parameters:
        size = getattr(parameter, "ds_numel", parameter.numel()) * parameter.element_size()
        if bucket and size > left:
            yield bucket
            bucket, left = [], most_bytes
        bucket.append((name, parameter))
        left -= size
    if bucket:
        yield bucket
