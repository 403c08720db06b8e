"""A rollout that is stopped by a signal or a full disk, on fake servers.

The finished samples are in the folder, and the process cleans up before it ends.
"""

import asyncio
import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seer_sgl import event_loop
from seer_sgl.timing import Timing
from tests.fake_sglang import FakeSGLang, serving
from tests.support.waiting import until

pytestmark = pytest.mark.process

DEADLINE_S = 120.0
DISORDER = ("never awaited", "Traceback", "destroyed", "ignored", "GeneratorExit")


class Driver:
    """`seer-sgl rollout` as a process over slow fake servers."""

    def __init__(self, out: Path, url: str, prompts: Path, **options: Any) -> None:
        self.out = out
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "seer_sgl", "rollout"),
                *("--prompts", str(prompts), "--out", str(out)),
                *("--set", f"engines={{launch: external, urls: ['{url}']}}"),
                *("--set", "scheduling.chunk_tokens=16"),
                *("--set", "sampling.max_response_len=4000"),
            ],
            **{"stderr": subprocess.PIPE, "preexec_fn": _hang_ups, **options},
        )

    async def samples(self, count: int) -> None:
        await until(lambda: len(self.lines()) >= count or self.process.poll() is not None)

    def lines(self) -> list[bytes]:
        """Returns the lines of samples.jsonl; the last one may be incomplete."""
        path = self.out / "samples.jsonl"
        return path.read_bytes().splitlines(keepends=True) if path.exists() else []

    async def ended(self) -> tuple[int, str]:
        """Waits for the end of the process; returns its exit status and its output."""
        _, output = await asyncio.to_thread(self.process.communicate, timeout=DEADLINE_S)
        return self.process.returncode, (output or b"").decode()

    def check_results(self) -> dict[str, Any]:
        """Asserts complete samples, a report and a timeline; returns the report."""
        lines = self.lines()
        assert lines
        assert all(line.endswith(b"}\n") and json.loads(line) for line in lines)
        assert (self.out / "timeline.png").read_bytes().endswith(b"IEND\xaeB`\x82")
        report: dict[str, Any] = json.loads((self.out / "report.json").read_text())
        return report


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with serving(FakeSGLang(delay_s=0.4, longest=4000)) as address:
        yield address


@pytest.fixture
def drive(url: str, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(f'{{"prompt_ids": {[5] * n}}}\n' for n in range(3, 33)))
    with contextlib.ExitStack() as stack:

        def begin(out: Path = tmp_path / "out", **options: Any) -> Driver:
            driver = Driver(out, url, prompts, **options)
            stack.callback(driver.process.kill)
            return driver

        yield begin


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)]
)
async def test_a_signal_costs_no_finished_sample(
    drive: Callable[..., Driver], number: signal.Signals
) -> None:
    driver = drive()
    await driver.samples(5)
    driver.process.send_signal(number)
    status, output = await driver.ended()
    assert (status, output.splitlines()[-1]) == (130, "seer-sgl: interrupted")
    report = driver.check_results()
    assert report["samples"] == len(driver.lines())
    assert report["error"] == "interrupted"
    assert report["unfinished_groups"] > 0


async def test_a_terminal_that_is_gone_costs_no_result(drive: Callable[..., Driver]) -> None:
    """The kernel sends SIGHUP, and later writes to the terminal fail."""
    master, terminal = pty.openpty()
    driver = drive(
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: _take_terminal(0),
    )
    os.close(terminal)
    gone = threading.Event()
    reader = asyncio.create_task(asyncio.to_thread(_drain, master, gone))
    await driver.samples(5)
    gone.set()
    await reader
    status, _ = await driver.ended()
    assert status == 130
    driver.check_results()


def _hang_ups() -> None:
    """Makes SIGHUP end a process again: tests that run under `nohup` pass on that it is ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _take_terminal(descriptor: int) -> None:
    import fcntl
    import termios

    _hang_ups()
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


def _drain(descriptor: int, gone: threading.Event) -> None:
    """Reads what a terminal shows until it is gone. A descriptor that is closed while another
    thread reads it stays open until that read returns."""
    while not gone.is_set():
        if select.select([descriptor], [], [], 0.05)[0]:
            os.read(descriptor, 4096)
    os.close(descriptor)


@pytest.mark.long
async def test_nohup_is_respected(drive: Callable[..., Driver]) -> None:
    driver = drive(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    await driver.samples(5)
    driver.process.send_signal(signal.SIGHUP)
    await driver.samples(15)
    assert driver.process.poll() is None
    driver.process.send_signal(signal.SIGTERM)
    assert (await driver.ended())[0] == 130


@pytest.mark.parametrize("pause_s", [pytest.param(0.0, marks=pytest.mark.long), 0.3])
async def test_an_impatient_user_disturbs_no_cleaning_up(
    drive: Callable[..., Driver], pause_s: float
) -> None:
    driver = drive()
    await driver.samples(5)
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        driver.process.send_signal(number)
        await asyncio.sleep(pause_s)
    status, output = await driver.ended()
    assert (status, output.splitlines()[-1]) == (130, "seer-sgl: interrupted")
    assert [word for word in DISORDER if word in output] == []
    driver.check_results()


def test_a_second_signal_interrupts_work_that_blocks_the_event_loop() -> None:
    signals = [signal.SIGTERM, signal.SIGINT]
    before = [signal.getsignal(number) for number in signals]

    async def read_a_large_file() -> None:
        for number in signals:
            os.kill(os.getpid(), number)
            time.sleep(0.01)  # noqa: ASYNC251
        raise AssertionError("nothing has interrupted this")

    try:
        with pytest.raises(KeyboardInterrupt):
            event_loop.run(read_a_large_file(), Timing(unnoticed_s=0.0))
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with six megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_leaves_whole_lines_a_report_and_a_timeline(
    drive: Callable[..., Driver], small_disk: Path
) -> None:
    driver = drive(small_disk / "out")
    await driver.samples(5)
    with contextlib.suppress(OSError), (small_disk / "others").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    status, output = await driver.ended()
    full = f"{driver.out / 'samples.jsonl'}: No space left on device"
    assert (status, output.splitlines()[-1]) == (1, f"seer-sgl: {full}")
    assert driver.check_results()["error"] == full
    assert sorted(path.name for path in driver.out.iterdir()) == [
        "report.json",
        "samples.jsonl",
        "timeline.png",
        "timeline.svg",
    ]


@pytest.mark.long
async def test_a_disk_that_is_full_already_is_refused_before_any_engine_is_asked(
    drive: Callable[..., Driver], small_disk: Path
) -> None:
    (small_disk / "others").write_bytes(bytes(4 << 20))
    driver = drive(small_disk / "out")
    status, output = await driver.ended()
    assert status == 2
    complaint = f"seer-sgl: --out {driver.out}: No space left on device"
    assert output.splitlines()[-1] == complaint
    assert list(driver.out.iterdir()) == []
