"""What engines say of the tokens of a prompt's images may be wrong: it costs chunks, no sample."""

import msgspec
import pytest

from seer_sgl.driver.flights import result_of
from seer_sgl.engine.wire import Unreadable, decode_generate
from seer_sgl.errors import BadReply
from seer_sgl.scheduling.ledger import KVLedger
from seer_sgl.scheduling.placement import EngineSlot
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.types import Chunk, ChunkReply, ChunkResult, Group
from tests.helpers import make_group
from tests.scheduling.chunks import take

LONGEST, PROMPT, IMAGE = 120, 10, 20
CHUNK = 16


def with_images(n: int, image_tokens: int = 4) -> Group:
    group = make_group(n=n, prompt_len=PROMPT, max_response_len=LONGEST - PROMPT)
    group.prompt = msgspec.structs.replace(
        group.prompt, image_data=("data:image/png;base64,AAAA",), image_tokens=image_tokens
    )
    group.image_tokens, group.longest = image_tokens, LONGEST
    return group


def engine(group: Group, capacity: int = 1000) -> Scheduler:
    scheduler = Scheduler(CHUNK)
    scheduler.add_engine(EngineSlot("e0", KVLedger(capacity), 10))
    scheduler.submit(group)
    return scheduler


def reply(chunk: Chunk, images: int = IMAGE) -> ChunkReply:
    """Returns the reply of an engine for which the images have so many tokens."""
    given = PROMPT + images + chunk.request.generated
    tokens = min(chunk.max_new_tokens, max(1, LONGEST - given))
    meta = {
        "id": chunk.rid,
        "finish_reason": {"type": "length"},
        "completion_tokens": tokens,
        "prompt_tokens": given,
        "output_token_logprobs": [[-1.0, 7, None]] * tokens,
    }
    return decode_generate(msgspec.json.encode({"meta_info": meta}), chunk)


def answered(scheduler: Scheduler, chunk: Chunk) -> None:
    """Returns a chunk to the scheduler as an honest engine answers it."""
    try:
        result = result_of(chunk, reply(chunk), 1.0)
    except Unreadable as error:
        result = ChunkResult(chunk=chunk, now=1.0, error=BadReply(str(error), engine_id="e0"))
    scheduler.complete(result)


def finish(scheduler: Scheduler, group: Group) -> None:
    for _ in range(100):
        chunk = scheduler.next_assignment(0.0)
        if chunk is None:
            break
        assert chunk.max_new_tokens > 0
        answered(scheduler, chunk)
    assert group.complete


@pytest.mark.parametrize("images", [10**7, LONGEST - PROMPT, -1, 1 - PROMPT])
def test_an_impossible_number_of_input_tokens_is_unreadable(images: int) -> None:
    chunk = take(engine(with_images(1)))
    with pytest.raises(Unreadable, match="input tokens"):
        reply(chunk, images)


def test_the_least_and_the_most_input_tokens_are_read() -> None:
    chunk = take(engine(with_images(1)))
    for images in (0, LONGEST - PROMPT - 1):
        assert reply(chunk, images).input_tokens == PROMPT + images


def test_a_wrong_first_count_costs_the_siblings_a_chunk_and_no_token() -> None:
    group = with_images(4)
    scheduler = engine(group)
    liar, *others = [take(scheduler) for _ in range(4)]
    scheduler.complete(result_of(liar, reply(liar, LONGEST - PROMPT - CHUNK), 1.0))
    assert group.counted
    for chunk in others:
        answered(scheduler, chunk)
    assert [request.generated for request in group.requests] == [CHUNK, 0, CHUNK, CHUNK]
    assert group.image_tokens == IMAGE
    finish(scheduler, group)
    assert [request.generated for request in group.requests[1:]] == [LONGEST - PROMPT - IMAGE] * 3


def test_a_wrong_count_leaves_siblings_that_are_ahead_of_it_a_chunk() -> None:
    group = with_images(2)
    scheduler = engine(group, capacity=2 * LONGEST)
    late = take(scheduler)
    for _ in range(4):
        answered(scheduler, take(scheduler))
    group.forget_count()
    scheduler.complete(result_of(late, reply(late, LONGEST - PROMPT - CHUNK), 1.0))
    assert group.requests[1].remaining < 0
    finish(scheduler, group)
    assert group.requests[1].generated == LONGEST - PROMPT - IMAGE


def test_images_that_were_thought_longer_than_any_request_are_sent() -> None:
    group = with_images(2, image_tokens=10_000)
    scheduler = engine(group, capacity=LONGEST)
    finish(scheduler, group)
    assert [request.generated for request in group.requests] == [LONGEST - PROMPT - IMAGE] * 2
