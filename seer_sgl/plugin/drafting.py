"""Grouped drafting inside an engine: its settings, its end of the draft hub, and its report."""

import os
from collections.abc import Callable
from typing import Any

import msgspec

from seer_sgl.draft.group_store import DraftIndex
from seer_sgl.draft.messages import Deltas, Done, Want
from seer_sgl.draft.replica import Replica
from seer_sgl.link.client import driver_link, hub_link
from seer_sgl.link.contract import DRAFT, DraftSettings

FROM_HUB: tuple[type[Any], ...] = (Deltas, Want, Done)


def settings() -> DraftSettings | None:
    """Returns what this server was started with. Raises msgspec.DecodeError if it is invalid."""
    given = os.environ.get(DRAFT)
    return None if given is None else msgspec.json.decode(given, type=DraftSettings)


def join(
    drafter: DraftIndex, wanted: DraftSettings, rank: int, ranks: int, vocab_size: int
) -> Replica | None:
    """Returns what feeds a drafter, linked to the hub if there is one; None unless `rank` is 0.

    Every rank connects to the driver; the first alone drafts. Without a hub an engine drafts from
    what it decodes itself.
    """
    driver_link(rank, ranks)
    if rank != 0:
        return None
    link = hub_link(rank, ranks)
    replica = Replica(
        drafter,
        None if link is None else link.offer,
        max_tokens=wanted.max_tokens,
        scope=wanted.scope,
        vocab_size=vocab_size,
    )
    if link is not None:
        for kind in FROM_HUB:
            link.on(kind, replica.received)
        link.on_connect(replica.connected)
    return replica


class DraftStatus:
    """The report on drafting; None until the worker drafts."""

    def __init__(self) -> None:
        self._facts: Callable[[], dict[str, Any]] | None = None

    def begin(self, facts: Callable[[], dict[str, Any]]) -> None:
        """The worker drafts from now on. facts: returns a DraftReport and counters, as JSON."""
        self._facts = facts

    def report(self) -> dict[str, Any] | None:
        """Returns drafting's part of the plugin's report."""
        return None if self._facts is None else self._facts()
