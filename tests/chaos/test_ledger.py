"""The ledger of a chaotic rollout finds chunks that were lost or repeated without a reason."""

from typing import Any

import pytest

from seer_sgl.errors import EngineUnavailable
from seer_sgl.types import Chunk, ChunkResult, Move, Request
from tests.chaos.ledger import Disturbance, Ledger, Lost, unexplained
from tests.helpers import make_group, make_reply


def chunk_of(request: Request, had: int, engine_id: str = "e0", number: int = 0) -> Chunk:
    """Returns a chunk of 8 tokens of a request that has `had` response tokens."""
    return Chunk(
        request=request,
        engine_id=engine_id,
        rid=f"{request.uid}.{number}",
        max_new_tokens=8,
        kv_tokens=request.prompt_len + had + 8,
        move=Move.STAY,
        migrated=False,
    )


@pytest.fixture
def request_() -> Request:
    return make_group().requests[0]


async def test_a_chunk_that_begins_before_the_tokens_of_its_request_is_found(
    request_: Request,
) -> None:
    ledger = Ledger()
    for number, had in enumerate((0, 8, 8, 16)):
        chunk = chunk_of(request_, had, number=number)
        ledger.sent(chunk, 0.0)
        ledger.grown(ChunkResult(chunk=chunk, now=0.0, reply=make_reply(8)))
    assert ledger.repeated == [f"{request_.uid}.{number}" for number in (2, 3)]
    assert ledger.tokens == 32


async def test_a_lost_chunk_begins_again_where_its_request_stood(request_: Request) -> None:
    ledger = Ledger()
    lost, again = (chunk_of(request_, 0, number=number) for number in range(2))
    ledger.sent(lost, 0.0)
    assert ledger.on("e0") == [lost]
    error = EngineUnavailable("it died")
    ledger.lost(ChunkResult(chunk=lost, now=0.0, error=error))
    ledger.sent(again, 0.0)
    assert ledger.repeated == []
    assert [(one.engine_id, one.budget, one.why) for one in ledger.lost_chunks] == [
        ("e0", 8, str(error))
    ]


@pytest.mark.parametrize("early", [False, True])
async def test_pages_are_unwritten_from_the_reply_to_the_acknowledgement(
    early: bool, request_: Request
) -> None:
    ledger, chunk = Ledger(), chunk_of(request_, 0)
    ledger.sent(chunk, 0.0)
    if early:  # the acknowledgement overtakes the reply
        ledger.stored(request_, True, 0.0, 0.0)
    ledger.grown(ChunkResult(chunk=chunk, now=0.0, reply=make_reply(8)))
    assert ledger.unwritten == ({} if early else {request_.uid: "e0"})
    if not early:
        ledger.stored(request_, True, 0.0, 0.0)
    assert ledger.unwritten == {}


LOST = Lost(engine_id="e1", sent_at=10.0, lost_at=12.0, budget=8, why="reset")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"began": 11.0, "ended": 11.5}, False),
        ({"began": 9.0, "ended": 10.0}, False),
        ({"began": 9.0}, False),
        ({"began": 12.5}, True),
        ({"began": 8.0, "ended": 9.5}, True),
        ({"began": 11.0, "engine_id": "e0"}, True),
    ],
)
def test_a_chunk_may_be_lost_only_where_and_when_its_engine_is_disturbed(
    changes: dict[str, Any], found: bool
) -> None:
    disturbance = Disturbance(**{"engine_id": "e1", "began": 0.0, "ended": None, **changes})
    assert unexplained([LOST], [disturbance]) == ([LOST] if found else [])
