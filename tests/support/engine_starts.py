"""Counts the engines that a session of tests starts, as a pytest plugin.

Starting an engine takes longer than most tests on it. So a tier has a number of starts that it may
not exceed: `LIMITS`. A test that needs no engine of its own belongs on the rig (tests/e2e/rig.py).
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

FILE = "SEER_SGL_ENGINE_STARTS"  # for engines: the file with a line per start
FOLDER = Path(__file__).parent / "count_engines"
LIMITS = {"smoke": 4, "engines": 8}  # engine starts per tier
KEY = pytest.StashKey[Path]()


def starts(file: Path) -> Counter[str]:
    """Returns the engine starts of each test, from a file of lines `TEST (PHASE)`."""
    return Counter(line.rpartition(" (")[0] for line in file.read_text().splitlines())


def excess(count: int, tier: str | None) -> str | None:
    """Returns why a tier started too many engines; None if it did not."""
    limit = LIMITS.get(tier or "")
    if limit is None or count <= limit:
        return None
    return (
        f"tier {tier} started {count} engines, more than its {limit}: use the rig "
        "(tests/e2e/rig.py), or raise the limit (tests/support/engine_starts.py) and say why"
    )


@pytest.fixture(scope="session")
def counted_starts(pytestconfig: pytest.Config) -> Iterator[None]:
    """Makes each engine that is started during the session add a line to a file."""
    handle, name = tempfile.mkstemp(prefix="engine-starts-")
    os.close(handle)
    pytestconfig.stash[KEY] = file = Path(name)
    pytestconfig.add_cleanup(file.unlink)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(FILE, str(file))
        environment.setenv("PYTHONPATH", str(FOLDER), prepend=os.pathsep)
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a session whose tier has started too many engines."""
    if (file := session.config.stash.get(KEY, None)) is None:
        return
    if excess(starts(file).total(), session.config.getoption("--tier")):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: "pytest.TerminalReporter", config: pytest.Config
) -> None:
    """Prints the engine starts of each test."""
    if (file := config.stash.get(KEY, None)) is None:
        return
    found = starts(file)
    terminalreporter.section("engine starts")
    for test, count in found.items():
        terminalreporter.write_line(f"{count:3} {test}")
    terminalreporter.write_line(f"{found.total():3} engines started")
    if problem := excess(found.total(), config.getoption("--tier")):
        terminalreporter.write_line(problem, red=True)
