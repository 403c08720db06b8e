"""A speculative run stops where plain decoding would have stopped."""

import json
import subprocess
import sys

from seer_sgl.engine.process import engine_environment

CASES = 2000


def test_runs_of_any_size_and_chunks_of_any_size_end_as_token_by_token() -> None:
    """The program asserts the identity of every case; here is counted what the cases were."""
    command = [sys.executable, "-m", "tests.engine.plugin.stop_cases", str(CASES)]
    done = subprocess.run(
        command, env=engine_environment(1), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["stock differs"] > CASES / 50, "else the cases would show nothing"
    assert seen["divided"] > CASES / 2
    for end in ("stop str", "stop int", "length NoneType"):
        assert seen[end] > CASES / 50, end
