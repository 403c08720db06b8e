"""Every command line of the pages can be typed: its options, files and config keys exist."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seer_sgl.config import load
from seer_sgl.engine.launch.process import engine_environment
from tools.docs.pages import ROOT

from .blocks import PAGES, blocks
from .command_checks import CHECKS
from .commands import Command, commands
from .configs import configs

# Names of a page that stand for something else.
STAND_INS = {
    "COMMAND": "rollout",
    "FILE": "fleet.yaml",
    "H": "10.0.0.9",
    "N": "7701",
    "WORKLOAD": "moonlight",
    "bench.NAME": "bench.scheduler",
    "scheduling.policy=shortest_prompt": "scheduling.policy=seer",  # exists after the steps there
    "shortest_prompt": "seer",
}
FLAGS = """
import argparse
from seer_sgl.plugin import cpu
cpu.prepare()
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(*parser._option_string_actions)
"""
TRACE = '{"group_id": "g", "prompt_ids": [1, 2, 3], "lengths": [100, 200]}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a reader: the checkout's files, and those that the pages describe."""
    monkeypatch.chdir(tmp_path)
    for name in ("bench", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "samples.jsonl").write_text(TRACE)
    for config in configs():
        (tmp_path / config.file).write_text(config.text)
    return tmp_path


@pytest.mark.parametrize("command", commands(), ids=str)
def test_a_command_line_of_a_page_is_valid(command: Command, folder: Path) -> None:
    program, *arguments = (STAND_INS.get(word, word) for word in command.words)
    if program == "seer-sgl" and "--fleet" in arguments[:-1]:
        assert load(Path(arguments[arguments.index("--fleet") + 1])).engines.launch == "external"
    if command.page == "benchmark.md":  # its mine.yaml is another one
        shutil.copy(ROOT / "configs" / "bench-cpu.yaml", folder / "mine.yaml")
    if program in CHECKS:
        CHECKS[program](arguments)


@pytest.mark.process
def test_flags_of_engines_are_flags_of_sglang() -> None:
    used = {f"--{flag}" for config in configs() for flag in config.load().engines.sglang}
    for command in commands():
        if command.words[:2] == ("seer-sgl", "engine"):
            used |= {word for word in command.words if word.startswith("--")}
    environment = engine_environment(None)
    listed = subprocess.check_output([sys.executable, "-c", FLAGS], env=environment, text=True)
    assert used - set(listed.split()) == {"--fleet"}


def test_every_block_has_a_language() -> None:
    languages = {block.language for page in PAGES for block in blocks(page)}
    # "py": signatures, which no test runs
    assert languages == {"bash", "bibtex", "py", "python", "text", "yaml"}
