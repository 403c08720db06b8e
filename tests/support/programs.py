"""Programs that run beside a test, and servers that it waits for."""

import contextlib
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tests.listening import family

ROOT = Path(__file__).resolve().parents[2]
START_S = 300.0
STOP_S = 60.0
Program = subprocess.Popen[bytes]


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """Runs a program in the checkout, and stops it and what it started at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        started = family(psutil.Process(process.pid)) if process.poll() is None else []
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        for each in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def wait_for(url: str, process: Program, log: Path, text: bytes = b"") -> None:
    """Waits until a URL of a program answers 200 with a text."""
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
            if text in reply.read():
                return
        assert process.poll() is None, f"it ended; see {log}: {log.read_text()[-2000:]}"
        assert time.monotonic() < deadline, f"not ready; see {log}: {log.read_text()[-2000:]}"
        time.sleep(0.5)
