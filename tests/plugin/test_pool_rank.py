"""The KV pool on one rank: its acknowledgements and its removal of pages.

Without SGLang: page names are the prefixes of a string of tokens, the pool is a set of them.
"""

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.kvpool.namespace import KvLayout
from seer_sgl.link import client, contract, messages
from seer_sgl.link.messages import Forget, Hello, KvStored, Rates
from seer_sgl.plugin.pool_rank import LEASED, PageNames, PoolRank, remove_pages
from seer_sgl.timing import DEFAULT, Timing
from tests.support.waiting import block_until

from .stand_ins import replace_module

PAGE = 2
LAYOUT = KvLayout(dtype="d", layout="l", page_size=PAGE, tp_size=1, pp_size=1)
NEVER_S = 3600.0


class FakeMooncake:
    """SGLang's MooncakeStore with a set as the store."""

    def __init__(self) -> None:
        self.is_mla_backend = True
        self.mla_suffix = ""
        self.mha_suffix: str | list[str] = "0"
        self.prefix = ""
        self.store = self
        self.present: set[str] = set()
        self.removed: list[str] = []
        self.leased: set[str] = set()
        self.queries = 0
        self.away = 0  # number of queries that fail

    def _tag_keys(self, keys: list[str]) -> list[str]:
        return [self.prefix + key for key in keys]

    def seer_stored(self, pages: list[str]) -> int:
        self.queries += 1
        if self.away > 0:
            self.away -= 1
            raise ConnectionError("the master is down")
        return next((i for i, page in enumerate(pages) if page not in self.present), len(pages))

    def batch_remove(self, names: list[str], force: bool = False) -> list[int]:
        assert not force, "it would free pages that are being read"
        self.removed += [name for name in names if name not in self.leased]
        return [LEASED if name in self.leased else 0 for name in names]


class Wire:
    """A fake link: records what the rank sent, and passes messages to it."""

    def __init__(self, url: str, token: str, hello: Hello) -> None:
        self.address, self.hello = (url, token), hello
        self.sent: list[Any] = []
        self.send = self.sent.append
        self.receive: Callable[[Any], None] = lambda _: None

    def on(self, kind: type, handler: Callable[[Any], None]) -> None:
        assert kind is Forget
        self.receive = handler


def pages_of(key: str, prior_hash: None, page_size: int) -> list[str]:
    return [key[:end] for end in range(page_size, len(key) + 1, page_size)]


def pool_rank(
    backend: Any,
    clock: Callable[[], float] = time.monotonic,
    timing: Timing = DEFAULT,
    **ranks: Any,
) -> PoolRank:
    """Returns a PoolRank of an engine with so many ranks."""
    sizes: Any = SimpleNamespace(
        **{"tp_size": 1, "pp_size": 1, "tp_rank": 0, "pp_rank": 0, **ranks}
    )
    return PoolRank(backend, sizes, LAYOUT, 100, timing=timing, clock=clock)


@pytest.fixture(autouse=True)
def without_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_module(monkeypatch, "sglang.srt.mem_cache.utils", get_storage_hash_str=pages_of)
    monkeypatch.setattr(client, "Link", Wire)
    monkeypatch.setattr(client, "_links", {})
    monkeypatch.setenv(contract.LINK_URL, "http://driver/link")
    monkeypatch.setenv(contract.LINK_TOKEN, "secret")
    monkeypatch.setenv(contract.INSTANCE, "server-1")


class Rank:
    """A PoolRank, its backend and the messages that it sent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, **timing: float) -> None:
        self.backend = FakeMooncake()
        self.pool_rank = pool_rank(self.backend, clock, Timing(**timing))
        wire: Any = self.pool_rank._link
        self.wire: Wire = wire

    @property
    def sent(self) -> list[Any]:
        return self.wire.sent

    @property
    def removed(self) -> list[str]:
        """The removed pages, without the suffix of Mooncake's keys."""
        return [name.removesuffix("__k") for name in self.backend.removed]

    def run(self, rid: str, tokens: str, *, written: bool = True) -> None:
        """Ends a call with these tokens, and reports them written."""
        self.pool_rank.finished(rid, tokens)
        if written:
            self.backend.present |= set(pages_of(tokens, None, PAGE))
            self.pool_rank.written(tokens)

    def settle(self) -> None:
        """Waits until all earlier events are processed."""
        self.run("settle.c1/", "##")
        block_until(lambda: KvStored("settle.c1/", True) in self.sent)
        self.sent.remove(KvStored("settle.c1/", True))


@pytest.fixture
def rank() -> Rank:
    """Returns a rank whose wait for pages has no limit."""
    return Rank(pool_longest_wait_s=math.inf)


@pytest.fixture
def quiet() -> Rank:
    """Returns a rank that queries the pool only after a write, and waits without limit."""
    return Rank(pool_first_check_s=NEVER_S, pool_longest_wait_s=math.inf)


@pytest.mark.parametrize(
    ("tokens", "present", "written", "times"),
    [
        ("abcd", ["ab", "abcd"], [], 0),
        ("abcd", ["ab", "abcd"], ["another"], 0),
        ("abcd", ["ab", "abcd"], ["another", "abcd"], 1),
        ("abcd", ["ab"], ["abcd"], 0),
        ("abc", ["ab"], ["ab"], 1),
        ("ab", ["ab"], ["ab", "ab"], 1),
        ("a", [], ["a"], 0),
    ],
    ids=[
        *("no write", "another write", "its write", "a write that failed"),
        *("a partial page", "two writes", "less than a page"),
    ],
)
def test_a_call_is_stored_once_its_last_whole_page_is_written(
    quiet: Rank, tokens: str, present: list[str], written: list[str], times: int
) -> None:
    quiet.run("r.c1/", tokens, written=False)
    quiet.backend.present |= set(present)
    for page in written:
        quiet.pool_rank.written(page)
    quiet.settle()
    assert quiet.sent == [KvStored("r.c1/", True)] * times


def test_a_rank_introduces_itself_and_counts_the_kv_of_all_ranks() -> None:
    last = pool_rank(FakeMooncake(), tp_size=4, pp_size=2, tp_rank=3, pp_rank=1)
    wire: Any = last._link
    assert wire.address == ("http://driver/link", "secret")
    assert wire.hello == Hello(messages.PROTOCOL, "server-1", 7, 8)
    assert last.kv_bytes_per_token == 800


def test_without_a_driver_pages_are_looked_after_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(contract.LINK_TOKEN)
    backend = FakeMooncake()
    alone = pool_rank(backend)
    backend.present.add("ab")
    alone.finished("r.c1/", "ab")
    alone._events.put(Forget("r", 0))
    block_until(lambda: backend.removed)


def test_calls_with_the_same_kv_are_both_acknowledged(rank: Rank) -> None:
    rank.run("r.c1/", "abcd", written=False)
    rank.run("s.c1/", "abcd")
    block_until(lambda: len(rank.sent) == 2)
    assert {frame.rid for frame in rank.sent if frame.complete} == {"r.c1/", "s.c1/"}


def test_looks_count_not_the_clock() -> None:
    rank = Rank(pool_first_check_s=0.01, pool_longest_wait_s=0.04)
    rank.run("r.c1/", "abcd", written=False)
    block_until(lambda: rank.sent)
    assert rank.sent == [KvStored("r.c1/", False)]
    assert rank.backend.queries == 3, "after 10, 20 and 40 ms, or later"


def test_a_pool_that_is_away_for_a_while_ends_no_acknowledgement(rank: Rank) -> None:
    rank.backend.away = 2
    rank.run("r.c1/", "ab")
    rank.run("s.c1/", "xy")
    block_until(lambda: len(rank.sent) == 2)
    assert sorted(frame.rid for frame in rank.sent if frame.complete) == ["r.c1/", "s.c1/"]


def test_a_pool_that_stays_away_is_reported_to_the_driver() -> None:
    rank = Rank(pool_longest_wait_s=0.0)
    rank.backend.away = sys.maxsize
    rank.run("r.c1/", "ab")
    block_until(lambda: rank.sent)
    assert rank.sent == [KvStored("r.c1/", False)]


@pytest.mark.parametrize(
    ("calls", "kept", "removed"),
    [
        ({"r.c1/": "abcdef"}, [PAGE], ["abcd", "abcdef"]),
        ({"r.c1/": "abcdef"}, [PAGE + 1], ["abcd", "abcdef"]),  # a part of a page is kept
        ({"r.c1/": "abcdef"}, [PAGE, 0, 0], ["abcd", "abcdef", "ab"]),
        ({"r.c1/": "ab", "r.c2/": "abcd", "s.c1/": "xy"}, [0], ["ab", "abcd"]),  # the newest call's
    ],
)
def test_pages_beyond_what_is_kept_of_a_request_are_removed_once(
    quiet: Rank, calls: dict[str, str], kept: list[int], removed: list[str]
) -> None:
    for rid, tokens in calls.items():
        quiet.run(rid, tokens)
    quiet.wire.receive(Forget("stranger", 0))
    for tokens_kept in kept:
        quiet.wire.receive(Forget("r", tokens_kept))
        quiet.settle()
    assert quiet.removed == removed


def test_what_is_still_being_written_is_removed_afterwards(quiet: Rank) -> None:
    quiet.run("r.c1/", "abcd", written=False)
    quiet.wire.receive(Forget("r", PAGE))
    quiet.wire.receive(Forget("r", 0))
    quiet.settle()
    assert quiet.removed == []
    quiet.backend.present |= {"ab", "abcd"}
    quiet.pool_rank.written("abcd")
    quiet.settle()
    assert quiet.sent == [KvStored("r.c1/", True)]
    assert quiet.removed == ["ab", "abcd"]


def test_pages_that_are_being_read_are_removed_once_their_lease_has_ended() -> None:
    now = 0.0
    rank = Rank(lambda: now, pool_first_check_s=NEVER_S, pool_lease_s=11.0)
    rank.backend.leased = {"abcd__k", "abcdef__k"}
    rank.run("r.c1/", "abcdef")
    rank.wire.receive(Forget("r", 0))
    rank.settle()
    assert rank.removed == ["ab"]
    rank.backend.leased = {"abcdef__k"}
    rank.settle()
    assert rank.removed == ["ab"], "Mooncake is not asked before"
    now = 11.0
    rank.settle()
    assert rank.removed == ["ab", "abcd"]
    rank.backend.leased.clear()
    now = 22.0
    rank.settle()
    assert rank.removed == ["ab", "abcd"], "a page that is read again is another request's"


def test_leases_end_without_another_event() -> None:
    rank = Rank(pool_first_check_s=NEVER_S, pool_lease_s=0.01)
    refused: list[list[str]] = []

    def refuse_once(names: list[str], force: bool = False) -> list[int]:
        if refused:
            return FakeMooncake.batch_remove(rank.backend, names, force)
        refused.append(names)
        return [LEASED] * len(names)

    rank.backend.batch_remove = refuse_once  # type: ignore[method-assign]
    rank.run("r.c1/", "ab")
    rank.wire.receive(Forget("r", 0))
    block_until(lambda: rank.backend.removed)
    assert (refused, rank.removed) == ([["ab__k"]], ["ab"])


def test_rates_are_summed_up_and_sent_now_and_then() -> None:
    now = 0.0
    rank = Rank(lambda: now, pool_rates_s=2.0)
    rank.pool_rank.measured(Rates(100, 0.5, 0, 0.0))
    rank.pool_rank.measured(Rates(0, 0.0, 300, 0.25))
    rank.settle()
    assert rank.sent == []
    now = 2.0
    rank.pool_rank.measured(Rates(1, 0.5, 1, 0.25))
    rank.settle()
    now = 4.0
    rank.pool_rank.measured(Rates(7, 1.0, 0, 0.0))
    rank.settle()
    assert rank.sent == [Rates(101, 1.0, 301, 0.5), Rates(7, 1.0, 0, 0.0)]


def test_the_oldest_page_names_are_given_up_beyond_the_limit() -> None:
    names = PageNames(5)
    names.put("a", ["a1", "a2"])
    names.put("b", ["b1", "b2"])
    names.put("a", ["a1", "a2", "a3"])
    assert names.take("b", 1) == ["b2"], "replaced, not counted twice"
    names.put("c", ["c1", "c2"])
    assert names.take("a", 0) == [], "the oldest is gone"
    assert names.take("b", 0) == ["b1"]
    names.put("d", [f"d{i}" for i in range(9)])
    assert names.take("c", 0) == []
    assert len(names.take("d", 0)) == 9, "the newest stays, regardless of its length"


@pytest.mark.parametrize(
    ("mla", "suffix", "names"),
    [
        (True, "0_1", ["tag_p__k", "tag_q__k"]),
        (False, "3", ["tag_p_3_k", "tag_p_3_v", "tag_q_3_k", "tag_q_3_v"]),
        (
            False,
            ["2", "3"],
            [f"tag_{page}_{rank}_{part}" for page in "pq" for rank in "23" for part in "kv"],
        ),
    ],
    ids=["mla", "plain", "split heads"],
)
def test_pages_are_removed_under_the_keys_that_mooncake_has_for_them(
    mla: bool, suffix: str | list[str], names: list[str]
) -> None:
    backend = FakeMooncake()
    backend.is_mla_backend, backend.mha_suffix, backend.prefix = mla, suffix, "tag_"
    assert remove_pages(backend, ["p", "q"]) == []
    assert backend.removed == names
    backend.leased = {names[-1]}
    assert remove_pages(backend, ["p", "q"]) == ["q"]


def test_pages_are_removed_from_a_folder_and_others_stay(tmp_path: Path) -> None:
    for name in ("p-0", "q-0", "q-1"):
        (tmp_path / f"{name}.bin").touch()
    backend = SimpleNamespace(file_path=str(tmp_path), _get_suffixed_key=lambda page: f"{page}-0")
    assert remove_pages(backend, ["q", "never written"]) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p-0.bin", "q-1.bin"]


def test_removing_nothing_asks_nobody_and_a_backend_we_do_not_know_is_left_alone() -> None:
    backend = FakeMooncake()
    backend.batch_remove = None  # type: ignore[method-assign, assignment]
    assert remove_pages(backend, []) == []
    assert remove_pages(SimpleNamespace(), ["p"]) == []
