"""Stop strings across a chunk boundary end a response where an undivided call would."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.driver.stop_strings import StopRecheck
from seer_sgl.types import ChunkReply, WeightSpan, logprob_array, token_array

ALPHABET = "abcd"  # token i decodes to ALPHABET[i]


def decode(ids: Sequence[int]) -> str:
    return "".join(ALPHABET[i] for i in ids)


def reply_of(ids: Sequence[int], versions: Sequence[WeightSpan] | None = None) -> ChunkReply:
    return ChunkReply(
        ids=token_array(ids),
        logprobs=logprob_array([-float(i) for i in range(len(ids))]),
        weight_spans=list(versions or [WeightSpan("1", len(ids))]),
        finish="length",
    )


def engine_call(stops: Sequence[str], before: Sequence[int], ids: Sequence[int]) -> int | None:
    """Returns how many tokens SGLang emits until one of its windows has a stop; None: no stop.

    `before`: the tokens that the same call generated before (Req._check_str_based_finish).
    """
    window = max(map(len, stops)) + 1
    for count in range(1, len(ids) + 1):
        output = list(before) + list(ids[:count])
        if any(stop in decode(output[-window:]) for stop in stops):
            return count
    return None


def test_a_stop_begun_in_the_last_chunk_cuts_the_next() -> None:
    recheck = StopRecheck(["abc"], len, decode)
    versions = [WeightSpan("1", 1), WeightSpan("2", 3)]
    reply = recheck([3, 0], reply_of([1, 2, 3, 3], versions))
    assert list(reply.ids) == [1, 2]
    assert list(reply.logprobs) == [0.0, -1.0]
    assert reply.weight_spans == [WeightSpan("1", 1), WeightSpan("2", 1)]
    assert (reply.finish, reply.matched) == ("stop", "abc")


def test_nothing_spans_the_boundary_and_the_reply_is_untouched() -> None:
    recheck = StopRecheck(["abc"], len, decode)
    reply = reply_of([1, 3])
    assert recheck([3, 3], reply) is reply
    assert recheck([], reply) is reply


def test_a_stop_within_the_last_chunk_is_not_found_twice() -> None:
    """The engine would have stopped there; an abort after it must not cut the next chunk."""
    recheck = StopRecheck(["ab"], len, decode)
    reply = reply_of([3, 3, 3])
    assert recheck([3, 3], reply) is reply


@given(
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    chunk=st.integers(1, 9),
)
def test_chunks_of_any_size_end_where_the_undivided_call_ends(
    stops: list[str], tokens: list[int], chunk: int
) -> None:
    whole = engine_call(stops, [], tokens)
    expected = tokens if whole is None else tokens[:whole]

    recheck = StopRecheck(stops, len, decode)
    response: list[int] = []
    while len(response) < len(tokens):
        new = tokens[len(response) : len(response) + chunk]
        stopped = engine_call(stops, [], new)  # the engine sees only this call's output
        reply = reply_of(new if stopped is None else new[:stopped])
        if stopped is not None:
            reply.finish = "stop"
        reply = recheck(response, reply)
        response += list(reply.ids)
        if reply.finish == "stop":
            break
    assert response == expected
