"""The routed experts in the reply to a chunk.

A chunk asks for the rows that its request lacks: all of them with the first chunk, and with a later
one from the last input token on. So no row is asked for whose KV another call has computed.
"""

from seer_sgl.routed_experts import ExpertShape, RoutedExperts
from seer_sgl.types import Chunk


def asks(chunk: Chunk) -> bool:
    return chunk.request.sampling.return_routed_experts


def most_bytes(chunk: Chunk, shape: ExpertShape | None) -> int:
    """Returns the largest size of their base64 in a reply; None: the chunk asks for none."""
    if shape is None:
        return 0
    # How many tokens images have is a guess, and an engine's count may be wrong.
    tokens = max(chunk.kv_tokens, chunk.request.group.longest or 0)
    return (tokens - chunk.request.routed) * shape.row_bytes * 4 // 3


def of_reply(
    content: bytes | None,
    chunk: Chunk,
    tokens: int,
    kept: int,
    shape: ExpertShape | None,
    *,
    input_tokens: int | None = None,
) -> RoutedExperts | None:
    """Returns the new rows of a chunk's reply; None if it asks for none or returns no token.

    content: what the engine returned. `tokens`: in the reply; `kept`: of them count.
    `input_tokens`: of the chunk, if only the engine knows. Raises ValueError for anything but the
    rows that were asked for.
    """
    if not asks(chunk) or not kept:
        return None
    if content is None or shape is None:
        raise ValueError("no routed experts, which were requested")
    given = chunk.request.total_len if input_tokens is None else input_tokens
    before = given - chunk.request.routed - 1
    if len(content) != (before + tokens) * shape.row_bytes:
        raise ValueError(
            f"{len(content)} bytes of routed experts; {before + tokens} rows of {shape.layers} x "
            f"{shape.top_k} {shape.dtype} have {(before + tokens) * shape.row_bytes}"
        )
    return RoutedExperts.of(memoryview(content)[: (before + kept) * shape.row_bytes], shape)
