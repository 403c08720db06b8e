"""Live progress: the panel in a terminal and the lines elsewhere."""

import asyncio
import io
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from rich.console import Console

from seer_sgl.driver.health import State
from seer_sgl.engine_types import EngineLoad
from seer_sgl.report.progress import ShownProgress
from seer_sgl.timing import Timing
from seer_sgl.types import Failure, FailureKind
from tests.helpers import made_sample, make_group, make_reply
from tests.support.infos import chunk_on, info, landed

DRAFTING: dict[str, Any] = {"draft_tokens": 17, "pool": "seer-x", "kv_bytes_per_token": 1000}


def half_done(clock: Callable[[], float] = time.monotonic, **facts: Any) -> ShownProgress:
    """Two engines; one of two groups of one request is complete, the other waits in b's queue.

    `facts`: of the engines.
    """
    infos = [msgspec.structs.replace(info(name), **facts) for name in "ab"]
    shown = ShownProgress(infos, groups=2, requests=2, clock=clock)
    requests = [make_group(name, n=1).requests[0] for name in ("x", "y")]
    chunks = [
        chunk_on(engine_id, request, migrated=engine_id == "a")
        for request, engine_id in zip(requests, "ab", strict=True)
    ]
    for chunk in chunks:
        shown.sent(chunk, 0.0)
    reply = msgspec.structs.replace(make_reply(10), verify_steps=4, cached_storage=5)
    shown.grown(landed(chunks[0], reply, 1.0, infos[0].kv_bytes_per_token))
    requests[0].finish("stop", None, 1.0)
    shown.finished(requests[0], made_sample(requests[0]))
    shown.closed(requests[0].group, None)
    shown.loaded("b", EngineLoad(used_tokens=100, progress=(), running=3, queued=2), 1.0)
    return shown


def text_of(shown: ShownProgress, *, ended: bool = False) -> str:
    """Returns the panel as text, in 80 columns."""
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(shown.table(ended))
    return captured.get()


def test_the_plain_lines_have_groups_requests_rate_tail_and_engines() -> None:
    counts, engines = half_done().lines()
    assert "groups 1/2  requests 1/2" in counts
    assert "tok/s" in counts
    assert counts.endswith("tail -")
    assert "accept" not in counts, "no engine drafts"
    assert "moved" not in counts, "there is no pool"
    assert "a 0 running, 0 queued, KV 0%" in engines
    assert "wait for KV" not in engines
    assert "b 3 running, 2 queued, KV 50%" in engines


def test_requests_that_wait_for_kv_are_shown_apart_from_queued_ones() -> None:
    shown = half_done()
    load = EngineLoad(used_tokens=100, progress=(), running=3, queued=2, kv_waiting=4)
    shown.loaded("b", load, 2.0)
    _, engines = shown.lines()
    assert "b 3 running, 2 queued, 4 wait for KV, KV 50%" in engines
    assert "3 running, 2 queued, 4 wait for KV" in text_of(shown)


@pytest.mark.parametrize("state", [State.DEAD, State.STARTING, State.QUARANTINED])
def test_an_engine_whose_server_has_ended_runs_nothing(state: State) -> None:
    shown = half_done()
    shown.health("b", State.SUSPECT, "no answer", 2.0)
    assert "b 3 running, 2 queued, KV 50%" in list(shown.lines())[1]
    shown.health("b", state, "it died", 3.0)
    shown.health("unknown", state, "it died", 3.0)
    assert "b 0 running, 0 queued, KV 0%" in list(shown.lines())[1]
    ended = text_of(shown, ended=True)
    assert "KV at most 50%" in ended
    assert "running" not in ended


def test_with_all_of_seer_they_show_what_drafts_and_the_pool_bring() -> None:
    counts, engines = half_done(**DRAFTING).lines()
    assert "accept 2.50  moved 1, 5.0 kB  tail -" in counts
    assert max(map(len, (counts, engines))) <= 100
    assert len(list(half_done(**DRAFTING).lines(ended=True))) == 1


def test_the_panel_has_a_row_per_technique_and_engine_in_80_columns() -> None:
    rows = text_of(half_done(**DRAFTING)).splitlines()
    assert [row.split()[0] for row in rows] == [
        *("requests", "speed", "drafts", "moved", "tail", "a", "b")
    ]
    text = "\n".join(rows)
    assert "1/2, groups 1/2" in text
    assert "accept length 2.50" in text
    assert "1 migrations" in text
    assert "5.0 kB of KV read from the pool" in text
    assert "3 running, 2 queued, KV 50%" in text
    assert [row.split()[0] for row in text_of(half_done()).splitlines()] == [
        *("requests", "speed", "tail", "a", "b")
    ]


@pytest.mark.parametrize("terminal", [True, False])
async def test_shown_while_it_runs_and_once_more_at_the_end(terminal: bool) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=120)
    async with half_done().shown(console, Timing(progress_s=0.01, progress_line_s=0.01)):
        await asyncio.sleep(0.05)
    text = output.getvalue()
    assert ("\x1b[" in text) == terminal
    assert "1/2" in text
    if not terminal:
        assert len(text.splitlines()) >= 2
        assert text.splitlines()[0].count("groups 1/2") == 1
        assert "b 3 running, 2 queued" in text
        assert "groups 1/2" in text.splitlines()[-1], "the end has no engines"
    else:
        assert "3 running, 2 queued" in text
        assert "1 chunks, KV at most" in text


def test_of_a_large_fleet_only_the_first_engines_are_shown() -> None:
    shown = ShownProgress([info(f"e{i}") for i in range(64)], groups=1, requests=1)
    text = "\n".join(shown.lines())
    assert "e7 0 running" in text
    assert "e8" not in text
    assert "and 56 more, 0 running in all" in text
    assert max(map(len, text.splitlines())) <= 100
    assert shown.table().row_count == 3 + 8 + 1


def test_the_tail_clock_starts_with_the_last_tenth() -> None:
    now = [100.0]
    shown = half_done(lambda: now[0])
    last = make_group("z", n=1).requests[0]
    last.finish("stop", None, 2.0)
    shown.finished(last, made_sample(last))
    now[0] += 2.5
    assert "tail 2.5 s" in next(shown.lines())


def test_the_tail_does_not_wait_for_requests_that_were_given_up() -> None:
    now = [100.0]
    shown = half_done(lambda: now[0])
    other = make_group("y", n=1)
    shown.closed(other, Failure(FailureKind.LEFT, "its caller left"))
    now[0] += 1
    assert "tail -" in next(shown.lines()), "the rollout has ended before its tail"
    shown.closed(other, Failure(FailureKind.LOST, "it failed"))
    now[0] += 2.5
    assert "tail 2.5 s" in next(shown.lines())
