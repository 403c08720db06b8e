"""A resume on engines that outlived their driver: its KV is still in the pool, and is used."""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.drivers import WAIT_S, Start, assert_same_samples, finish, samples_in
from tests.e2e.test_journal import calm_rollout, config_of, files, kill_at
from tests.rollout.fakes import journal_now

pytestmark = [pytest.mark.shared_engines, pytest.mark.long]
PROMPTS, N = 3, 4


def flush(url: str) -> None:
    """Empties an engine's caches once the requests of the dead driver have ended there."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/flush_cache", data=b"", timeout=WAIT_S):
                return
        except urllib.error.HTTPError:  # requests run
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_resume_takes_the_kv_of_the_dead_drivers_requests_from_the_pool(
    fleet: dict[str, Any], start: Start, tmp_path: Path
) -> None:
    tree = fleet | {"sampling": {"max_response_len": 1200}, "rollout": {"seed": 23}}
    calm = calm_rollout(start, tmp_path, tree, PROMPTS, N)
    for url in tree["engines"]["urls"]:
        flush(url)
    journal = config_of(tmp_path, tree, PROMPTS, N)
    assert kill_at(start(*files(tmp_path)), journal, 16_000)
    before = journal_now(journal)
    for url in tree["engines"]["urls"]:
        flush(url)
    finish(start(*files(tmp_path), "--resume", str(journal)))

    assert_same_samples(calm, samples_in(tmp_path / "out"))
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    resumed = report["resumed"]
    assert resumed["tokens"] == before.tokens
    finished = sum(s["response_length"] for s in calm if s["seed"] in before.finished)
    assert resumed["requests"] >= 4
    begun = before.tokens - finished  # of unfinished requests
    assert report["cached_tokens"]["storage"] > begun / 2
    assert report["recomputed_tokens"] < begun / 2
