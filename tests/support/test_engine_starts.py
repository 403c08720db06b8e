"""Engines are counted wherever they are started, and a tier with too many of them fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seer_sgl.engine.launch.process import SERVER_MODULE

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
# A stand-in for an engine: it starts another process, as SGLang starts its scheduler, and ends.
ENGINE = """
import multiprocessing
if __name__ == "__main__":
    scheduler = multiprocessing.get_context("spawn").Process(target=int)
    scheduler.start()
    scheduler.join()
"""
TESTS = f"""
import subprocess, sys

def test_starts_two(counted_starts):
    for _ in range(2):
        subprocess.run([sys.executable, "-m", "{SERVER_MODULE}"], check=True)

def test_starts_one_in_a_process(counted_starts):
    command = [sys.executable, "-m", "{SERVER_MODULE}"]
    program = f"import subprocess; subprocess.run({{command}}, check=True)"
    subprocess.run([sys.executable, "-c", program], check=True)

def test_starts_none(counted_starts): subprocess.run([sys.executable, "-c", ""], check=True)
"""


def session(folder: Path, limit: int) -> "subprocess.CompletedProcess[str]":
    """Runs TESTS as the tier `engines` with a limit, with a stand-in for the engine."""
    package = folder / "seer_sgl" / "plugin"
    package.mkdir(parents=True)
    for init in (package.parent, package):
        (init / "__init__.py").touch()
    (package / "server.py").write_text(ENGINE)
    (folder / "test_file.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "tier.py").write_text(
        f"from tests.support import engine_starts\nengine_starts.LIMITS['engines'] = {limit}\n"
        "def pytest_addoption(parser): parser.addoption('--tier')\n"
    )
    plugins = ["-p", "tests.support.engine_starts", "-p", "tier", "--tier", "engines"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-p", "no:cacheprovider", "--rootdir", "."],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_starts_of_each_test_are_printed_and_too_many_fail_the_session(tmp_path: Path) -> None:
    (tmp_path / "within").mkdir()
    within = session(tmp_path / "within", 3)
    assert within.returncode == 0, within.stdout + within.stderr
    assert "  2 test_file.py::test_starts_two\n" in within.stdout
    assert "  1 test_file.py::test_starts_one_in_a_process\n" in within.stdout
    assert "  3 engines started\n" in within.stdout
    (tmp_path / "beyond").mkdir()
    beyond = session(tmp_path / "beyond", 2)
    assert beyond.returncode == pytest.ExitCode.TESTS_FAILED
    assert "tier engines started 3 engines, more than its 2" in beyond.stdout
