"""Live progress: the panel in a terminal and the lines elsewhere."""

import asyncio
import io

import pytest
from rich.console import Console

from seer_sgl.report import progress
from seer_sgl.report.progress import Progress
from seer_sgl.types import Chunk, ChunkResult, EngineLoad, Move
from tests.helpers import made_sample, make_group, make_reply

from .test_report import info


def half_done() -> Progress:
    """Two engines; one of two groups of one request is complete, the other is running."""
    shown = Progress([info("a"), info("b")], groups=2, requests=2)
    requests = [make_group(name, n=1).requests[0] for name in ("x", "y")]
    chunks = [
        Chunk(
            request=request,
            engine_id=engine_id,
            rid="r/",
            max_new_tokens=10,
            kv_tokens=20,
            move=Move.STAY,
            migrated=False,
        )
        for request, engine_id in zip(requests, "ab", strict=True)
    ]
    for chunk in chunks:
        shown.sent(chunk, 0.0)
    shown.grown(ChunkResult(chunk=chunks[0], now=1.0, reply=make_reply(10)))
    requests[0].finish("stop", None, 1.0)
    shown.finished(requests[0], made_sample(requests[0]))
    shown.closed(requests[0].group, None)
    shown.loaded("b", EngineLoad(used_tokens=100, progress=()), 1.0)
    return shown


def test_a_plain_line_has_groups_requests_rate_tail_and_engines() -> None:
    line = half_done().line()
    assert "groups 1/2" in line
    assert "requests 1/2" in line
    assert "tok/s" in line
    assert "tail not reached" in line
    assert "a 0 running, KV 0%" in line
    assert "b 1 running, KV 50%" in line


@pytest.mark.parametrize("terminal", [True, False])
async def test_shown_while_it_runs_and_once_more_at_the_end(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PLAIN_LINE_S", 0.01)
    monkeypatch.setattr(progress, "REFRESH_S", 0.01)
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=120)
    async with half_done().shown(console):
        await asyncio.sleep(0.05)
    text = output.getvalue()
    assert ("\x1b[" in text) == terminal
    assert "1/2" in text
    if not terminal:
        assert len(text.splitlines()) >= 2
        assert all("groups 1/2" in line for line in text.splitlines())
    else:
        assert "running, 1 chunks done" in text


def test_of_a_large_fleet_only_the_first_engines_are_shown() -> None:
    shown = Progress([info(f"e{i}") for i in range(64)], groups=1, requests=1)
    assert "e7 0 running" in shown.line()
    assert "e8" not in shown.line()
    assert "and 56 more, 0 running in all" in shown.line()
    assert shown.table().row_count == 2 + 8 + 1


def test_the_tail_clock_starts_with_the_last_tenth() -> None:
    shown = half_done()
    last = make_group("z", n=1).requests[0]
    last.finish("stop", None, 2.0)
    shown.finished(last, made_sample(last))
    assert "tail 0." in shown.line()
