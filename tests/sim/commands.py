"""Commands that simulate, run in this process, and a trace for them."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

SMALL = ("--set", "engine.count=4", "--set", "engine.kv_tokens=60000")


class CommandResult(NamedTuple):
    """The exit status and output of a command."""

    status: int
    out: str
    err: str


Command = Callable[..., CommandResult]  # runs a command with the options that it is given


def command(
    main: Callable[[], None],
    words: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Returns a function that runs a command to its end. `words`: those before its options."""

    def call(*options: str) -> CommandResult:
        monkeypatch.setattr(sys, "argv", [*words, *options])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
        return CommandResult(status, *capsys.readouterr())

    return call


def assert_refused(result: CommandResult, complaint: str) -> None:
    """Asserts that a command ended with status 2 and one line, which has the complaint."""
    assert (result.status, result.out) == (2, "")
    assert complaint in result.err
    assert result.err.count("\n") == 1


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
