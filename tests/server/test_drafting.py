"""The drafting counters that the metrics of a server read."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from seer_sgl.server.monitoring import drafting
from seer_sgl.server.monitoring.drafting import DraftReader
from tests.support.infos import info

DRAFTING = msgspec.structs.replace(info("e0"), draft_tokens=4)


class Drafter:
    info = DRAFTING

    async def drafting(self) -> dict[str, Any]:
        return {}


class SilentHub:
    """Answers once."""

    def __init__(self) -> None:
        self._answers: list[dict[str, Any] | None] = [{"tokens_in": 5}, None]

    async def facts(self) -> dict[str, Any] | None:
        return self._answers.pop(0)


async def test_the_counters_of_a_hub_do_not_fall_while_it_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafting, "MAX_AGE_S", 0.0)
    fleet: Any = SimpleNamespace(engines=[Drafter()], drafts=SilentHub())
    reader = DraftReader(fleet)
    # The hub answers; it does not; no engine serves, so it is not asked.
    for serving in ({"e0"}, {"e0"}, set[str]()):
        counters = await reader.counters(serving)
        assert set(counters.engines) == serving
        assert counters.hub is not None
        assert counters.hub.tokens_in == 5
