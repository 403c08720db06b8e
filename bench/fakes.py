"""Fake engines in processes of their own, for measurements of a driver."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UNLIMITED = 1 << 40  # KV tokens


@contextlib.contextmanager
def running_fakes(program: str, processes: int = 1, **options: Any) -> Iterator[list[str]]:
    """Starts so many processes of a program of tests/, and yields the URLs of all their engines.

    `options`: of each process, as the program takes them in its JSON object.
    """
    options = {"max_total_num_tokens": UNLIMITED} | options
    command = [sys.executable, "-m", program, json.dumps(options)]
    started, urls = [], []
    try:
        for _ in range(processes):
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            started.append(process)
            assert process.stdout is not None
            urls += json.loads(process.stdout.readline())
        yield urls
    finally:
        for process in started:
            process.kill()
            process.wait()
