"""The messages a rollout sends to the draft hub, and the history of an earlier rollout."""

import json
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seer_sgl.config import parse
from seer_sgl.driver.checks import check_engines
from seer_sgl.driver.draft_groups import HISTORY_FROM, DraftKeeper
from seer_sgl.engine.wire import sampling_params
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import MOST_SIBLINGS, ORIGIN
from seer_sgl.link.hub import HubClient
from seer_sgl.rollout.history import read_history
from seer_sgl.types import Group
from tests.helpers import LEFT, make_group, make_reply
from tests.support.infos import chunk_on, info

IDS = list(range(10))  # the ids of make_group's prompts


class FakeHub(HubClient):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def load(self, group: str, sequence: int, tokens: "array[int]") -> None:
        self.heard.append((group, sequence, tokens))

    def done(self, group: str) -> None:
        self.heard.append(group)


def send(keeper: DraftKeeper, group: Group, index: int) -> None:
    keeper.sent(chunk_on("a", group.requests[index]), 1.0)


def finish(keeper: DraftKeeper, group: Group, index: int) -> None:
    group.requests[index].finish("stop", None, 1.0)
    if group.complete:
        keeper.closed(group, None)


def test_a_group_is_over_when_its_last_request_is() -> None:
    hub, group = FakeHub(), make_group("g", n=2)
    keeper = DraftKeeper(hub)
    for index in (0, 1):
        assert hub.heard == []
        send(keeper, group, index)
        finish(keeper, group, index)
    assert hub.heard == ["g"]


def test_a_group_that_is_given_up_is_over_once_and_one_that_never_began_is_not_mentioned() -> None:
    hub, group = FakeHub(), make_group("g", n=2)
    keeper = DraftKeeper(hub)
    keeper.closed(make_group("never sent"), LEFT)
    send(keeper, group, 0)
    keeper.closed(group, LEFT)
    keeper.closed(group, LEFT)
    assert hub.heard == ["g"]


def test_restored_tokens_come_with_the_first_chunk_and_do_not_change_later() -> None:
    hub, group = FakeHub(), make_group("g", n=3)
    group.requests[0].append(make_reply(2, "stop", first=5))
    group.requests[0].finish("stop", None, 1.0)
    group.requests[2].append(make_reply(1, first=7))
    keeper = DraftKeeper(hub)
    send(keeper, group, 1)
    group.requests[2].append(make_reply(1, first=8))
    send(keeper, group, 2)
    assert hub.heard == [("g", 0, array("i", [5, 6])), ("g", 2, array("i", [7]))]


def test_history_comes_with_the_first_chunk_as_sequences_after_the_groups_own() -> None:
    hub, group = FakeHub(), make_group("g", n=2)
    history = [array("i", [5]), array("i", [6])]
    keeper = DraftKeeper(hub, lambda _: history)
    send(keeper, group, 1)
    send(keeper, group, 0)
    assert hub.heard == [("g", HISTORY_FROM + i, ids) for i, ids in enumerate(history)]


def test_a_group_of_more_samples_than_an_index_takes_drafts_in_parts() -> None:
    hub, group = FakeHub(), make_group("g", n=2 * MOST_SIBLINGS + 1)
    keeper = DraftKeeper(hub, lambda _: [array("i", [5])])
    group.requests[MOST_SIBLINGS].append(make_reply(1, first=7))
    send(keeper, group, 0)
    keeper.closed(group, LEFT)
    parts = ["g", "g/1", "g/2"]
    history = [(part, HISTORY_FROM, array("i", [5])) for part in parts]
    assert hub.heard == [("g/1", MOST_SIBLINGS, array("i", [7])), *history, *parts]
    sent = [
        sampling_params(chunk_on("a", group.requests[index]), drafting=True)
        for index in (MOST_SIBLINGS - 1, MOST_SIBLINGS)
    ]
    assert [params["custom_params"][ORIGIN]["group"] for params in sent] == parts[:2]


def test_samples_are_found_by_their_prompt(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    sample = {"group_id": "g", "prompt_ids": IDS, "response_ids": [1, 2], "text": "x"}
    other = sample | {"prompt_ids": [1], "response_ids": [7]}
    lines = [sample, other, sample | {"response_ids": []}]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    history = read_history(path)
    assert [list(ids) for ids in history(make_group().prompt)] == [[1, 2], []]
    assert history(make_group(prompt_len=3).prompt) == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", ": no samples"),
        ('{"prompt_ids": [1]}', ":1: object missing required field response_ids"),
        ('{"prompt_ids": [1], "response_ids": [-1]}', r":1: response_ids\[0\]: expected int >= 0"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^draft\.history: .*f\.jsonl{complaint}") as raised:
        read_history(path)
    assert "\n" not in str(raised.value)


def test_engines_that_do_not_draft_are_refused_where_drafting_is_asked_for() -> None:
    config = parse({"model": {"path": "m"}, "draft": {"scope": "fleet"}})
    drafting = msgspec.structs.replace(info("a"), draft_tokens=17)
    check_engines(config.fleet, [drafting])
    with pytest.raises(ConfigError, match=r"draft\.scope: engine b .* has no speculative decoding"):
        check_engines(config.fleet, [drafting, info("b")])
