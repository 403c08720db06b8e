"""Which engines the answer about checksums of weights is made of."""

from typing import Any

from seer_sgl.backend.replies import EngineReply
from seer_sgl.server.control.checksums import CHECKSUM, compared

REFUSED = EngineReply(400, {"success": False, "message": "no"})


def of(**sums: str) -> dict[str, EngineReply]:
    """Returns replies with these checksums, by engine."""
    return {name: EngineReply(200, {CHECKSUM: value}) for name, value in sums.items()}


def outcome(replies: dict[str, EngineReply], *stale: str, **ranks: int) -> tuple[int, Any, Any]:
    status, answer = compared(replies, ranks, stale)
    return int(status), answer["success"], answer.get(CHECKSUM)


def test_a_stale_engine_neither_fails_nor_differs() -> None:
    good = of(e0="first", e2="first")
    for other in (of(e1="other"), {"e1": REFUSED}):
        assert outcome({**good, **other}, "e1") == (200, True, "first")
        assert outcome({**good, **other})[:2] == (400, False)


def test_an_engine_fails_beside_a_stale_one() -> None:
    assert outcome({**of(e0="first", e1="first"), "e2": REFUSED}, "e1")[:2] == (400, False)


def test_engines_of_another_number_of_ranks_are_compared_with_one_another() -> None:
    replies = of(e0="one", e1="two", e2="two", e3="one")
    assert outcome(replies, e1=2, e2=2)[1]
    assert not outcome(replies, e1=2, e2=2, e3=2)[1]
