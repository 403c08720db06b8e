"""The server benchmark with few callers: nothing is lost, doubled or left over."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("chunk_tokens", [16, 256])
def test_under_load_every_caller_has_its_own_answer_once(chunk_tokens: int) -> None:
    few = ("--callers", "300", "--seconds", "20", "--rounds", "1", "--think-s", "2")
    options = (*few, "--delay-s", "0.3", "--chunk-tokens", str(chunk_tokens), "--without-router")
    command = [sys.executable, "-m", "bench.server", "--json", *options]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rounds = {each["arm"]: each for each in json.loads(printed.splitlines()[-1])["rounds"]}
    for arm in rounds.values():
        assert arm["wrong"] == 0
        assert not arm["errors"]
        assert arm["answered"] + arm["hung_up"] == arm["sent"]
        assert arm["streamed"] and arm["hung_up"]
    server = rounds["server"]
    left = server["left_over"]
    assert (left["in_progress"], left["open_groups"], left["breaches"]) == (0, 0, [])
    if chunk_tokens == 256:  # one call per request; of those that hung up some were not sent
        assert server["answered"] <= server["engine_calls"] <= server["sent"]
    assert left["requests"] == 0
