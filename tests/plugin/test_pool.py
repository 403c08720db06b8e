"""The hooks that name a layout, pass events to the rank, and write copies. Without SGLang."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from seer_sgl.kvpool.hicache import NAMESPACE
from seer_sgl.kvpool.namespace import KvLayout
from seer_sgl.link.contract import PoolReport
from seer_sgl.link.messages import Rates
from seer_sgl.plugin import pool
from seer_sgl.plugin.pool import PoolPart

from .stand_ins import replace_module

PAGE = 16
LAYOUT = KvLayout(dtype="d", layout="l", page_size=PAGE, tp_size=1, pp_size=1)


class FakeRank:
    """A PoolRank that records the calls of the hooks."""

    layout = LAYOUT
    kv_bytes_per_token = 100

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.rates: list[Rates] = []
        self.calls: list[tuple[str, object]] = []
        self.written = self.pages.append
        self.measured = self.rates.append

    def finished(self, rid: str, key: object) -> None:
        self.calls.append((rid, key))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces `time`: a test advances `now`."""
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(pool, "time", clock)
    return clock


@pytest.fixture
def rank() -> FakeRank:
    return FakeRank()


@pytest.fixture
def attached(rank: FakeRank) -> PoolPart:
    fake: Any = rank
    return PoolPart(fake)


def call(**fields: Any) -> Any:
    plain = {
        "rid": "r.c1/",
        "origin_input_ids": [1, 2],
        "output_ids": [3, 4, 5],
        "extra_key": "w",
        "cache_salt": None,
        "skip_radix_cache_insert": False,
        "owned_kv_len": lambda: 4,
    }
    return SimpleNamespace(**{**plain, **fields})


@pytest.mark.parametrize(
    ("cached", "named", "skipped", "registered"),
    [
        ((), {}, False, True),
        ((True,), {}, False, True),
        ((), {"is_insert": True}, False, True),
        ((), {"checkpoint": True}, False, True),
        ((False,), {}, False, False),
        ((), {"is_insert": False}, False, False),
        ((), {"checkpoint": False}, False, False),
        ((), {"checkpoint": True}, True, False),
    ],
)
def test_a_finished_call_that_sglang_caches_is_registered_with_its_key(  # noqa: PLR0917
    monkeypatch: pytest.MonkeyPatch,
    rank: FakeRank,
    attached: PoolPart,
    cached: tuple[bool, ...],
    named: dict[str, bool],
    skipped: bool,
    registered: bool,
) -> None:
    def radix_key(tokens: list[int], extra: str, **_: object) -> Any:
        return SimpleNamespace(page_aligned=lambda size: (extra, tokens, size))

    replace_module(monkeypatch, "sglang.srt.mem_cache.radix_cache", RadixKey=radix_key)
    tree: Any = SimpleNamespace(tree_core=SimpleNamespace(is_eagle=False), page_size=PAGE)
    attached.call_finished(call(skip_radix_cache_insert=skipped), tree, *cached, **named)
    key = ("w", [1, 2, 3, 4], PAGE)
    assert rank.calls == ([("r.c1/", key)] if registered else [])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("tokens", "cached"), [(PAGE, PAGE), (PAGE, PAGE - 1), (PAGE + 1, PAGE)])
def test_a_page_with_the_newest_token_is_copied_after_the_step_that_computes_its_kv(
    monkeypatch: pytest.MonkeyPatch, attached: PoolPart, device: str, tokens: int, cached: int
) -> None:
    class Key(list[int]):
        def __init__(self, held: list[int], *_: object, **__: object) -> None:
            super().__init__(held)

        def page_aligned(self, size: int) -> "Key":
            return Key(self[: len(self) // size * size])

    replace_module(monkeypatch, "sglang.srt.mem_cache.radix_cache", RadixKey=Key)
    waits: list[str] = []
    streams = SimpleNamespace(current_stream=lambda: SimpleNamespace(wait_stream=waits.append))
    replace_module(monkeypatch, "torch", get_device_module={"cuda": streams}.__getitem__)
    decodes = SimpleNamespace(is_extend=lambda: False)
    batch: Any = SimpleNamespace(launch_ts=None, forward_mode=decodes)
    attached.batch_ran("done", scheduler(device), batch)
    tree: Any = SimpleNamespace(tree_core=SimpleNamespace(is_eagle=False), page_size=PAGE)
    ended = call(output_ids=[0] * (tokens - 2), owned_kv_len=lambda: cached)
    attached.call_finished(ended, tree)
    under_way = device == "cuda" and cached == tokens
    assert waits == (["steps"] if under_way else [])


def test_without_a_pool_the_hooks_change_nothing() -> None:
    part, nobody = PoolPart(), cast(Any, None)
    assert not part.attached
    part.call_finished(call(), nobody)
    assert part.report(nobody) is None


def test_a_request_of_an_older_sglang_has_its_length_under_another_name() -> None:
    older = SimpleNamespace(effective_kv_committed_len=lambda: 3)
    assert pool._cached_len(cast(Any, older)) == 3


@pytest.mark.parametrize(("name", "named"), [("org/m", "-org/m"), (None, "-")])
def test_a_backend_is_opened_under_the_layout_and_watched(
    monkeypatch: pytest.MonkeyPatch, rank: FakeRank, name: str | None, named: str
) -> None:
    class Store:
        def batch_set(self, keys: list[str], values: object) -> bool:
            raise OSError(f"no room for {values} of {keys}")

    def create(factory: type, kind: str, config: Any, host: Any, **more: int) -> Store:
        opened.append((factory, kind, config.model_name, host, more))
        return Store()

    def joined(*args: Any) -> FakeRank:
        made.append(args)
        return rank

    opened, made = list[Any](), list[Any]()
    monkeypatch.setattr(pool, "PoolRank", joined)
    monkeypatch.setenv(NAMESPACE, "fleet")
    config: Any = SimpleNamespace(model_name=name, tp_size=1, pp_size=1)
    device = SimpleNamespace(dtype="d", store_dtype="uint8")  # so SGLang stores each FP8 format
    host: Any = SimpleNamespace(
        device_pool=device, dtype="uint8", layout="l", logical_page_size=PAGE, size_per_token=7
    )
    part = PoolPart()
    store: Any = part.open_store(create, Store, "file", config, host, more=1)
    assert opened == [(Store, "file", LAYOUT.tag("fleet") + named, host, {"more": 1})]
    assert made[0][:4] == (store, config, LAYOUT, 7)
    assert isinstance(store, Store)
    assert store.batch_set(["a", "b"], "pages") is False
    assert rank.pages == ["b"], "the end of a write, even of a failed one, is passed on"
    assert part.attached
    report = part.report(stopped_tree())
    assert report is not None
    assert (part._threads.failures, report.broken) == (1, None)


def stopped_tree() -> Any:
    """Returns a cache with storage whose threads SGLang has stopped."""
    stopped = threading.Event()
    stopped.set()
    controller = SimpleNamespace(storage_stop_event=stopped, enable_storage=True)
    return SimpleNamespace(cache_controller=controller)


def test_a_read_that_is_long_enough_gives_a_rate(rank: FakeRank, attached: PoolPart) -> None:
    least = pool.RATE_TOKENS // PAGE
    for pages in (0, least - 1, least):
        attached.pages_read(pages, 0.5)
    assert rank.rates == [Rates(0, 0.0, pool.RATE_TOKENS, 0.5)]
    small = msgspec.structs.replace(LAYOUT, page_size=1)
    rank.layout = small
    attached.pages_read(pool.FULL_PAGES, 0.5)
    assert rank.rates[-1] == Rates(0, 0.0, pool.FULL_PAGES, 0.5)


def scheduler(device: str) -> Any:
    return SimpleNamespace(device=device, forward_stream="steps")


def launched(clock: SimpleNamespace, tokens: int | None, **mode: bool) -> Any:
    """Returns a batch as SGLang's ScheduleBatch.copy leaves it, launched now."""
    kinds = {"is_extend": True, "is_target_verify": False, **mode}
    lens = None if tokens is None else [tokens - 1, 1]
    return SimpleNamespace(
        forward_mode=SimpleNamespace(**{name: lambda k=kind: k for name, kind in kinds.items()}),
        extend_lens=lens,
        launch_ts=clock.now,
    )


def test_a_prefill_that_is_long_enough_gives_a_rate(
    rank: FakeRank, attached: PoolPart, clock: SimpleNamespace
) -> None:
    for tokens, mode in (
        (pool.RATE_TOKENS - 1, {}),
        (None, {}),
        (5000, {"is_extend": False}),
        (5000, {"is_target_verify": True}),
        (pool.RATE_TOKENS, {}),
    ):
        clock.now += 3.0  # between two batches
        ran = launched(clock, tokens, **mode)
        clock.now += 0.25
        assert attached.batch_ran("done", scheduler("cpu"), ran) == "done"
        clock.now += 1.0  # the next batch runs before the result of this one is processed
        assert attached.batch_processed("done", scheduler("cpu"), ran, "result") == "done"
    assert rank.rates == [Rates(pool.RATE_TOKENS, 0.25, 0, 0.0)]


def test_a_prefill_that_waits_for_the_batch_before_is_measured_from_its_end(
    rank: FakeRank, attached: PoolPart, clock: SimpleNamespace
) -> None:
    gpu = scheduler("cuda")
    clock.now += 1.0
    first = launched(clock, 5000)
    clock.now += 0.25
    second = launched(clock, pool.RATE_TOKENS)
    for batch in (first, second):
        attached.batch_ran("done", gpu, batch)
    for batch in (first, second):
        clock.now += 0.5
        attached.batch_processed("done", gpu, batch, "result")
    assert rank.rates == [Rates(5000, 0.75, 0, 0.0), Rates(pool.RATE_TOKENS, 0.5, 0, 0.0)]


def test_a_server_reports_its_namespace_and_the_size_of_its_kv(
    attached: PoolPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAMESPACE, "fleet")
    tree = stopped_tree()
    assert attached.report(tree) == PoolReport(LAYOUT.tag("fleet"), 100)
    tree.cache_controller.enable_storage = False
    assert attached.report(tree) is None, "SGLang has given it up"


@pytest.mark.parametrize(
    ("busy", "sleeps"),
    [
        ("", True),
        ("waiting_queue", False),
        ("ongoing_write_through", False),
        ("ongoing_backup", False),
        ("ongoing_prefetch", False),
    ],
)
def test_a_scheduler_does_not_sleep_while_kv_is_on_its_way(
    attached: PoolPart, busy: str, sleeps: bool
) -> None:
    on_its_way = {
        name: {name: 1} if name == busy else {}
        for name in ("ongoing_write_through", "ongoing_backup", "ongoing_prefetch")
    }
    waiting = ["request"] if busy == "waiting_queue" else []
    idle = SimpleNamespace(waiting_queue=waiting, tree_cache=SimpleNamespace(**on_its_way))
    slept: list[Any] = []
    attached.keep_awake(slept.append, idle)
    assert slept == ([idle] if sleeps else [])
