"""Grouped drafting inside an engine: what it is told of it, and its end of the draft hub."""

import os
from collections.abc import Callable
from typing import Any

import msgspec

from seer_sgl.draft.group_store import Index
from seer_sgl.draft.messages import Deltas, Done, Want
from seer_sgl.draft.replica import Replica
from seer_sgl.link.client import driver_link, hub_link
from seer_sgl.link.contract import DRAFT, DraftSettings

FROM_HUB: tuple[type[Any], ...] = (Deltas, Want, Done)


def settings() -> DraftSettings | None:
    """What this server was started with. Raises msgspec.DecodeError if it makes no sense."""
    given = os.environ.get(DRAFT)
    return None if given is None else msgspec.json.decode(given, type=DraftSettings)


def join(
    drafter: Index, wanted: DraftSettings, rank: int, ranks: int, vocab_size: int
) -> Replica | None:
    """What feeds a drafter, on the link to the hub if there is one; None unless `rank` is 0.

    Every rank says hello to the driver; the first alone drafts. Without a hub an engine drafts from
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


# Called for `/server_info`: what the worker says of its drafting, with the `draft_tokens` that a
# request may need in KV slots beyond its own tokens; None while there is none.
tell: Callable[[], dict[str, Any] | None] = lambda: None  # noqa: E731 (replaced by the worker)


def facts() -> dict[str, Any] | None:
    """What the plugin says of drafting in `/server_info`; None without any."""
    return tell()
