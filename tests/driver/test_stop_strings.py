"""Stop strings across a chunk boundary end a response where an undivided call would."""

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.driver.stop_strings import MOST_TOKENS_PER_CHARACTER, StopRecheck, StopStrings
from seer_sgl.routed_experts import RoutedExperts
from seer_sgl.sampling import Sampling
from seer_sgl.types import ChunkReply, WeightSpan, logprob_array, token_array
from tests.helpers import make_group
from tests.support.experts import SHAPE, rows_of

ALPHABET = "abcd"  # token i decodes to ALPHABET[i]
EMPTY = 9


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
    uncut = reply_of([1, 2, 3, 3], versions)
    uncut.routed_experts = RoutedExperts.of(rows_of(5, 1, 4), SHAPE)
    reply = recheck([3, 0], uncut)
    assert list(reply.ids) == [1, 2]
    assert list(reply.logprobs) == [0.0, -1.0]
    assert reply.weight_spans == [WeightSpan("1", 1), WeightSpan("2", 1)]
    assert reply.routed_experts == RoutedExperts.of(rows_of(5, 1, 2), SHAPE)
    assert (reply.finish, reply.matched) == ("stop", "abc")


def test_the_engines_count_of_a_stop_decides_where_it_is_searched() -> None:
    """Here a stop of two characters has six tokens; for the engine it has two, so its window of
    three tokens never holds the stop that the model spells with other tokens between."""
    stops = StopStrings(CountingTokenizer())  # type: ignore[arg-type]
    (request, other) = make_group(n=2, sampling=Sampling(stop=["ab"])).requests
    for each, counted, cut in ((request, None, True), (other, 2, False)):
        first = msgspec.structs.replace(reply_of([3, 0, EMPTY]), stop_tokens=counted)
        assert stops.amend(each, first) is first
        each.append(first)
        second = msgspec.structs.replace(reply_of([EMPTY, 1, 3]), stop_tokens=counted)
        amended = stops.amend(each, second)
        assert (amended.matched == "ab") == cut
        assert len(amended.ids) == (2 if cut else 3)


def test_a_wrong_count_of_a_stop_acts_on_its_own_reply_only() -> None:
    windows: list[int] = []

    def noted(ids: Sequence[int]) -> str:
        windows.append(len(ids))
        return decode(ids)

    recheck = StopRecheck(["ab"], len, noted)
    before = [3] * 10_000
    lie = msgspec.structs.replace(reply_of([3] * 5_000), stop_tokens=1 << 14)
    assert recheck(before, lie) is lie
    assert len(windows) <= 2 * MOST_TOKENS_PER_CHARACTER
    assert max(windows) <= 2 * MOST_TOKENS_PER_CHARACTER + 1
    assert recheck([3, 0], msgspec.structs.replace(lie, stop_tokens=0)).matched is None
    assert recheck([3, 0], reply_of([1, 3])).matched == "ab"


def test_a_stop_that_only_a_cut_character_shows_does_not_end_the_response() -> None:
    """Half a character is U+FFFD where a chunk begins with it, but not beside its other half."""

    def text(ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    first, second = "é".encode()
    recheck = StopRecheck(["\ufffd"], lambda _: 3, text, stop_token_ids=[second])
    found = msgspec.structs.replace(reply_of([second]), finish="stop", matched="\ufffd")
    assert recheck([ord("a")], found) == found, "here it is half a character"
    assert recheck([first], found).matched == second, "a stop token as well"

    recheck = StopRecheck(["\ufffd"], lambda _: 3, text)
    rechecked = recheck([first], found)
    assert (rechecked.finish, rechecked.matched) == ("length", None)
    assert rechecked.ids == found.ids
    late = msgspec.structs.replace(
        reply_of([second, *b"abc", second]), finish="stop", matched="\ufffd"
    )
    assert recheck([first], late) is late, "its window had what an undivided call sees"


class CountingTokenizer:
    """Counts three tokens per character; the token EMPTY has no text."""

    def stop_len(self, text: str) -> int:
        return 3 * len(text)

    def decode(self, ids: Sequence[int]) -> str:
        return decode([token for token in ids if token != EMPTY])


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
