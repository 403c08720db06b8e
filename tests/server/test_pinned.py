"""What the server keeps of SGLang's own sessions is bounded."""

from typing import Any

import pytest

from seer_sgl.server import pinned
from seer_sgl.server.errors import BadRequest
from seer_sgl.server.pinned import Pinned

REPLACE = {"rid": "t0", "replace": True}


def take(sessions: Pinned, name: str, turn: str, **params: Any) -> None:
    session = sessions.of({"id": name})
    assert session is not None
    sessions.take_turn(session, {"id": name, **params}, [turn])


def test_the_turns_of_the_oldest_session_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pinned, "MOST_TURNS", 4)
    sessions = Pinned()
    for name in ("old", "closed", "new"):
        sessions.add(name, "e0")
        take(sessions, name, "t0")
    sessions.pop("closed")
    for turn in range(1, 4):
        take(sessions, "new", f"t{turn}", rid="t0")
    assert sessions.of({"id": "old"}) == pinned.PinnedSession("e0", {}, ambiguous=True)
    with pytest.raises(BadRequest, match="replace"):
        take(sessions, "old", "t1", **REPLACE)
    take(sessions, "new", "t9", **REPLACE)


def test_a_turn_of_a_session_that_was_closed_meanwhile_is_not_kept() -> None:
    sessions = Pinned()
    sessions.add("a", "e0")
    session = sessions.of({"id": "a"})
    assert session is not None
    assert sessions.pop("a") == "e0"
    sessions.take_turn(session, {"id": "a"}, ["t0"])
    assert not sessions._with_turns
