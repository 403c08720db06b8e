"""Grouped drafting inside an engine: its settings, its link to the draft hub, and its report."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import msgspec

from seer_sgl.draft.group_store import DraftIndex
from seer_sgl.draft.messages import Deltas, Done, ToHub, Want, by_hub
from seer_sgl.draft.replica import Replica
from seer_sgl.link.client import driver_link, hub_links
from seer_sgl.link.contract import DRAFT, DraftSettings

FROM_HUB: tuple[type[Any], ...] = (Deltas, Want, Done)


def settings() -> DraftSettings | None:
    """Returns the draft settings that this server was started with; None without drafting.

    Raises msgspec.DecodeError if they are invalid.
    """
    value = os.environ.get(DRAFT)
    return None if value is None else msgspec.json.decode(value, type=DraftSettings)


def join(
    drafter: DraftIndex, draft_settings: DraftSettings, rank: int, ranks: int, vocab_size: int
) -> Replica | None:
    """Returns the Replica that feeds a drafter, linked to the hubs if there are any.

    Every rank connects to the driver, but only the first one drafts: the others get None. Without
    a hub, the engine drafts from the tokens that it decodes itself.
    """
    driver_link(rank, ranks)
    if rank != 0:
        return None
    links = hub_links(rank, ranks)

    def offer(message: ToHub) -> None:
        for hub, part in by_hub(message, len(links)).items():
            links[hub].offer(part)

    replica = Replica(
        drafter,
        offer if links else None,
        max_tokens=draft_settings.max_tokens,
        scope=draft_settings.scope,
        vocab_size=vocab_size,
    )
    for link in links:
        for kind in FROM_HUB:
            link.on(kind, replica.received)
        link.on_connect(replica.connected)
    return replica


@dataclasses.dataclass
class DraftStatus:
    """What the plugin reports about the drafting of this process.

    paths: the most continuations per node. decodes: whether plain steps are SGLang's decode steps,
    as without the worker. report: returns a DraftReport and counters, as JSON; None until
    the worker drafts.
    """

    paths: int = 1
    decodes: bool = True
    report: Callable[[], dict[str, Any] | None] = lambda: None
