"""Commands that simulate, run in this process, and a trace for them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

SMALL = ("--set", "engine.count=4", "--set", "engine.kv_tokens=60000")


class CommandResult(NamedTuple):
    """The exit status and output of a command."""

    status: int
    out: str
    err: str


def ended(main: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> CommandResult:
    """Runs a command to its end."""
    status = 0
    try:
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    return CommandResult(status, *capsys.readouterr())


def write_trace(path: Path) -> None:
    """Writes a trace of 12 groups of 4, in the format of `seer-sgl rollout`."""
    lines = [
        {
            "group_id": f"g{group}",
            "index": index,
            "prompt_ids": [group] * 50,
            "response_ids": [1, 2],
            "response_length": 20 + 37 * group * group + 11 * index,
        }
        for group in range(12)
        for index in range(4)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
