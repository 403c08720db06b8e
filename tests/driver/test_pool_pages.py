"""Pages are released once no sibling can read them, and not before."""

from array import array
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from seer_sgl.driver import pool_pages
from seer_sgl.driver.pool_pages import PageReleaser, common_prefix
from seer_sgl.types import Group
from tests.helpers import LEFT, made_sample, make_group
from tests.support.infos import chunk_on, info


class FakeLink:
    def __init__(self) -> None:
        self.forgotten: list[tuple[str, str, int]] = []

    def forget(self, instance: str, uid: str, keep: int) -> None:
        self.forgotten.append((instance, uid, keep))


def releaser(pool: str | None = "p") -> tuple[PageReleaser, FakeLink]:
    link: Any = FakeLink()
    engine = msgspec.structs.replace(info("a"), pool=pool, instance="i")
    engines: Any = {"a": SimpleNamespace(info=engine)}
    return PageReleaser(link, engines), link


def respond(group: Group, index: int, *ids: int) -> None:
    group.requests[index].response_ids = array("i", ids)
    group.requests[index].engines = ["a"]


def finish(pages: PageReleaser, group: Group, index: int) -> None:
    group.requests[index].finish("stop", None, 1.0)
    pages.finished(group.requests[index], made_sample(group.requests[index]))


def continues(pages: PageReleaser, group: Group, index: int) -> None:
    pages.sent(chunk_on("a", group.requests[index]), 1.0)


def test_what_a_sibling_shares_stays_and_the_rest_goes_at_once() -> None:
    pages, link = releaser()
    group = make_group(n=3, prompt_len=10)
    respond(group, 0, 1, 2, 3, 4, 5)
    respond(group, 1, 1, 2, 9)
    respond(group, 2, 1, 8)
    finish(pages, group, 0)
    assert link.forgotten == [("i", "g.0", 12)]


def test_nothing_goes_while_a_sibling_may_still_begin_alike() -> None:
    pages, link = releaser()
    group = make_group(n=2, prompt_len=10)
    respond(group, 0, 1, 2, 3)
    finish(pages, group, 0)
    assert not link.forgotten, "its sibling has no tokens yet"
    respond(group, 1, 1, 2)
    continues(pages, group, 1)
    assert not link.forgotten, "its sibling's tokens are still the same"
    respond(group, 1, 1, 2, 7)
    continues(pages, group, 1)
    continues(pages, group, 1)
    assert link.forgotten == [("i", "g.0", 12)]


def test_many_siblings_are_compared_only_once_all_of_them_have_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = 0

    def counted(first: "array[int]", second: "array[int]") -> int:
        nonlocal compared
        compared += 1
        return common_prefix(first, second)

    monkeypatch.setattr(pool_pages, "common_prefix", counted)
    pages, link = releaser()
    group = make_group(n=100, prompt_len=10)
    for index in range(100):  # each has its first chunk, and every second one ends there
        continues(pages, group, index)
        respond(group, index, *range(index, index + 20))
        if index % 2:
            finish(pages, group, index)
    assert len(link.forgotten) == 50
    assert compared == 50 * 50, "not at each chunk that is sent"


def test_the_common_prefix_is_found_wherever_it_ends() -> None:
    ids = array("i", range(100))
    for end in (0, 1, 15, 16, 17, 99):
        other = ids[:]
        other[end] = -1
        assert common_prefix(ids, other) == common_prefix(other[: end + 1], ids) == end
        assert common_prefix(ids, ids[:end]) == end


def test_the_last_of_a_group_leaves_its_prompt() -> None:
    pages, link = releaser()
    group = make_group(n=2, prompt_len=10)
    respond(group, 0, 1, 2, 3)
    respond(group, 1, 1, 2, 3)
    finish(pages, group, 0)
    assert not link.forgotten
    finish(pages, group, 1)
    assert link.forgotten == [("i", "g.0", 10), ("i", "g.1", 10)]


def test_a_group_that_was_given_up_leaves_its_prompt_only() -> None:
    pages, link = releaser()
    group = make_group(n=3, prompt_len=10)
    respond(group, 0, 1, 2)
    respond(group, 1, 1, 2, 3)
    finish(pages, group, 0)
    pages.closed(group, LEFT)
    assert link.forgotten == [("i", "g.0", 10), ("i", "g.1", 10)]
    continues(pages, group, 1)
    assert len(link.forgotten) == 2


def test_engines_without_a_pool_are_told_nothing() -> None:
    pages, link = releaser(pool=None)
    group = make_group(n=1)
    respond(group, 0, 1)
    finish(pages, group, 0)
    assert not link.forgotten
