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
    urls: list[str] = []
    with contextlib.ExitStack() as stack:
        for _ in range(processes):
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)  # waits for its end, and closes its output
            stack.callback(process.kill)
            assert process.stdout is not None
            urls += json.loads(process.stdout.readline())
        yield urls
