"""The report on processes that are restarted when they die."""

import asyncio
import os
from pathlib import Path

import pytest

from seer_sgl.processes import restarts
from seer_sgl.processes.supervisor import SupervisedProcess, supervised
from seer_sgl.rollout.fleet_figures import process_section
from seer_sgl.timing import Timing
from tests.support.waiting import until


@pytest.mark.process
async def test_what_dies_again_and_again_is_not_restarted_and_the_report_says_why(
    tmp_path: Path,
) -> None:
    fails = SupervisedProcess("fails", ["sh", "-c", "exit 3"], tmp_path / "fails.log", os.environ)
    works = SupervisedProcess("works", ["sleep", "600"], tmp_path / "works.log", os.environ)
    await asyncio.gather(fails.start(), works.start())
    kept: list[restarts.Restarts] = []
    try:
        async with supervised([fails, works], kept, Timing(watch_s=0.01, restart_most_s=0.02)):
            before = {each.name: each.count for each in kept}
            await until(lambda: kept[0].quarantine is not None)
            failing, working = process_section(before, kept)
            now = {each.name: each.count for each in kept}
            began_later = process_section(now, kept)
    finally:
        await asyncio.gather(fails.stop(), works.stop())
    assert failing == {
        "name": "fails",
        "respawns": restarts.MOST_FAILURES - 1,
        "quarantine": "it failed 5 times in a row; the last time: its process ended with status 3; "
        f"its log: {tmp_path / 'fails.log'}",
    }
    assert working == {"name": "works", "respawns": 0, "quarantine": None}
    assert [each["respawns"] for each in began_later] == [0, 0]
