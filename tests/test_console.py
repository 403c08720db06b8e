"""The commands' output of log lines."""

import io
import logging
import os
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console

from seer_sgl.cli import cli
from seer_sgl.console import flushed_output, log_to
from seer_sgl.errors import ConfigError

logger = logging.getLogger("seer_sgl.some.module")


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=20, highlight=False)


def printed(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_info_is_printed_as_it_is_and_other_levels_with_their_name(console: Console) -> None:
    with log_to(console, "info"):
        logger.debug("not shown")
        logger.info("[bold]engine %s is ready after a long time[/]", "e0")
        logger.warning("watch out")
    logger.error("after the block")
    assert printed(console) == [
        "[bold]engine e0 is ready after a long time[/]",
        "warning: watch out",
    ]


@pytest.mark.parametrize(
    ("level", "lines"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)]
)
def test_a_level_shows_itself_and_what_is_worse(console: Console, level: str, lines: int) -> None:
    before = logging.getLogger("seer_sgl").level
    with log_to(console, level):
        for name in ("debug", "info", "warning", "error"):
            logger.log(getattr(logging, name.upper()), "a line")
    assert len(printed(console)) == lines
    assert logging.getLogger("seer_sgl").level == before


def test_loggers_that_repeat_themselves_are_printed_once(console: Console) -> None:
    with log_to(console, "info", once=("seer_sgl.some",)):
        for i in (1, 1, 2):
            logger.warning("round %d", i)
            logging.getLogger("seer_sgl.other").warning("round")
    lines = printed(console)
    assert [lines.count(f"warning: round{end}") for end in (" 1", " 2", "")] == [1, 1, 3]


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_reader_that_has_ended_ends_the_program(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit) as ended, flushed_output():
            print("x" * size)
        monkeypatch.undo()
    assert ended.value.code == 1


@pytest.mark.parametrize("level", ["info", "debug"])
def test_the_causes_of_an_error_are_for_debugging(console: Console, level: str) -> None:
    def fail() -> None:
        try:
            raise ConnectionError("nobody there")
        except ConnectionError as error:
            raise ConfigError("no master") from error

    with pytest.raises(ConfigError), log_to(console, level):
        fail()
    assert any("nobody there" in line for line in printed(console)) == (level == "debug")


@pytest.mark.parametrize("command", ["rollout", "bench", "simulate", "drafthub"])
def test_a_level_that_does_not_exist_is_refused(command: str) -> None:
    ended = CliRunner().invoke(cli, [command, "--log-level", "loud"])
    assert ended.exit_code == 2
    assert "'loud' is not one of" in ended.output
