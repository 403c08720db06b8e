"""The load of `make test-flaky` ends, and its table shows what failed."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import flaky
from tests.support.waiting import block_until


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
def test_the_load_is_niced_whether_linux_shares_by_process_or_by_session() -> None:
    wanted = f"nice {flaky.NICENESS}"

    def niced(load: int) -> bool:
        # Without such groups the file is missing or empty.
        group = Path(f"/proc/{load}/autogroup")
        by_session = group.read_text() if group.exists() else ""
        return psutil.Process(load).nice() == flaky.NICENESS and wanted in (by_session or wanted)

    with flaky.busy(2) as ids:
        block_until(lambda: all(map(niced, ids)))


@pytest.mark.process
def test_a_run_names_the_tests_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flaky, "OUT", tmp_path)
    (tmp_path / "test_some.py").write_text(
        "import pytest\npytestmark = pytest.mark.smoke\n"
        "def test_good(): pass\ndef test_bad(): raise OSError\n"
        "def test_left_out(): pytest.skip()\ndef test_without(fixture): pass\n"
        "@pytest.fixture\ndef broken():\n    yield\n    raise OSError\n"
        "def test_bad_twice(broken): raise OSError\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = smoke\n")
    found = flaky.run("smoke", [str(tmp_path / "test_some.py")], "some")
    assert not found.ok
    failed = ("test_bad", "test_without", "test_bad_twice")
    assert (found.passed, found.failed) == (1, tuple(f"test_some::{name}" for name in failed))
