"""A driver that was stopped (SIGSTOP) for longer than its time limits continues."""

import asyncio
import json
import signal
from pathlib import Path

import psutil
import pytest
import yaml

from tests.rollout.fakes import fakes
from tests.support.killed import check_samples, driver, prepare
from tests.support.waiting import until

pytestmark = pytest.mark.process

LIMIT_S = 4.0


async def test_a_stopped_driver_continues_with_the_replies_that_came_meanwhile(
    tmp_path: Path,
) -> None:
    async with fakes(delay_s=0.1, max_running_requests=4) as it:
        prepare(tmp_path, it)
        config = yaml.safe_load((tmp_path / "config.yaml").read_text())
        config["engines"] |= {"stall_timeout_s": LIMIT_S, "recovery_timeout_s": LIMIT_S}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        async with driver(tmp_path) as stopped:
            await until(lambda: len(it.seeds()) >= 20)
            stopped.process.send_signal(signal.SIGSTOP)
            state = psutil.Process(stopped.process.pid).status
            await until(lambda: state() == psutil.STATUS_STOPPED)
            await asyncio.sleep(2 * LIMIT_S)
            assert state() == psutil.STATUS_STOPPED
            stopped.process.send_signal(signal.SIGCONT)
            output = await stopped.end()
            assert stopped.process.returncode == 0, output
        check_samples(tmp_path)
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert report["lost_chunks"] == report["wasted_tokens"] == 0
        assert [len(engine["states"]) for engine in report["engines"]] == [1, 1]
