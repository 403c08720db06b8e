"""The load of `make test-flaky` ends, and its table shows what failed."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import flaky

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_passes"/>
<testcase classname="tests.a" name="test_is_skipped"><skipped/></testcase>
<testcase classname="tests.a" name="test_fails"><failure/></testcase>
<testcase classname="tests.a" name="test_fails"><error/></testcase>
<testcase classname="tests.b" name="test_has_no_fixture"><error/></testcase>
</testsuite></testsuites>"""


def test_a_report_counts_every_test_once(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert flaky.outcome(tmp_path / "report.xml") == (
        1,
        ("tests.a::test_fails", "tests.b::test_has_no_fixture"),
    )


@pytest.mark.process
def test_the_load_ends_with_its_block() -> None:
    with flaky.busy(2) as ids:
        load = [psutil.Process(pid) for pid in ids]
        assert len(load) == 2
    assert not any(process.is_running() for process in load)


@pytest.mark.process
def test_the_load_ends_if_its_owner_is_killed() -> None:
    code = (
        "import time; from tests import flaky\n"
        "with flaky.busy(1) as ids: print(*ids, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        load = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
        psutil.wait_procs([load])


@pytest.mark.process
def test_a_run_names_the_tests_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flaky, "OUT", tmp_path)
    (tmp_path / "test_some.py").write_text(
        "import pytest\npytestmark = pytest.mark.smoke\n"
        "def test_good(): pass\ndef test_bad(): raise OSError\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = smoke\n")
    found = flaky.run("smoke", [str(tmp_path / "test_some.py")], "some")
    assert not found.ok
    assert (found.passed, found.failed) == (1, ("test_some::test_bad",))
