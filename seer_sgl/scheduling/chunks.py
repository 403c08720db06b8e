"""How long a chunk may be."""

# The smallest chunk of the tail is this part of the largest: each chunk costs a round trip, and a
# move costs a prefill or a fetch.
SMALLEST = 1 / 8


def tail_chunk(chunk_tokens: int, unfinished: int, slots: int) -> int:
    """Token budget of a chunk: `chunk_tokens` while there is work for every slot, less in the tail.

    `unfinished`: requests that have not ended; `slots`: chunks the fleet has run at once. In the
    tail engines run empty, and a shorter chunk is a sooner chance to move to one of them.
    """
    if unfinished >= slots:
        return chunk_tokens
    return max(1, int(chunk_tokens * max(SMALLEST, unfinished / slots)))
