"""The tokens of a streaming request as its observers get them, and those that are kept."""

from types import SimpleNamespace
from typing import Any

from seer_sgl.driver.token_stream import TokenStream
from tests.helpers import make_group, make_reply
from tests.support.infos import chunk_on


def test_each_event_adds_to_the_tokens_that_are_kept_and_copies_none() -> None:
    seen: list[int] = []
    observer = SimpleNamespace(streamed=lambda _, ids, logprobs: seen.extend(ids))
    run: Any = SimpleNamespace(observers=[observer])
    chunk = chunk_on("e0", make_group().requests[0])
    stream = TokenStream(chunk, run, lambda _, reply: reply)
    stream.received(make_reply(1))
    assert stream.kept is not None
    ids = stream.kept.ids
    for token in range(2, 6):
        stream.received(make_reply(1, first=token))
    assert stream.kept.ids is ids, "of 10^5 events each would copy what all before it had"
    assert seen == ids.tolist() == [1, 2, 3, 4, 5]
    chunk.request.append(stream.kept)
    assert (chunk.request.response_ids, chunk.request.weight_spans[0].tokens) == (ids, 5)
