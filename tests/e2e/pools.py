"""Configs of fleets with a KV pool that a driver starts, and what is in a pool."""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from seer_sgl.config import FlagValue
from tests.e2e.conftest import MODEL
from tests.e2e.conftest import SGLANG as RIG
from tests.e2e.rig import PAGE
from tests.listening import family, listeners
from tests.support.processes import child, command_of

WARM_UP_OBJECTS = 2
SGLANG: dict[str, FlagValue] = {**RIG, "max-total-tokens": 16384}


def local(count: int, **sections: dict[str, Any]) -> dict[str, Any]:
    """Returns a config that starts its own servers, one core each."""
    return {
        "model": {"path": str(MODEL)},
        "engines": {"count": count, "cores": "auto", "sglang": SGLANG},
        "scheduling": {"chunk_tokens": 128, **sections.pop("scheduling", {})},
        "sampling": {"max_response_len": 3000, **sections.pop("sampling", {})},
        "rollout": {"seed": 11},
        **sections,
    }


def pooled(backend: str, **keys: Any) -> dict[str, Any]:
    """Returns the section `kv_pool`."""
    return {"backend": backend, "page_size": PAGE, "memory": "256mb", **keys}


def objects_in_mooncake() -> int:
    """Returns the number of objects in the pool whose master this process has started."""
    port = json.loads(command_of(child("master"))[-1])["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics/summary") as reply:
        keys = re.search(r"Keys: (\d+)", reply.read().decode())
    assert keys is not None
    return int(keys[1])


def assert_on_loopback(at_least: int) -> None:
    """Asserts that no port of this process and its children is reachable from another machine."""
    ports = listeners(family(psutil.Process()))
    assert [listener for listener in ports if not listener.on_loopback] == []
    assert len(ports) >= at_least, ports


def assert_private(folder: Path, key: str) -> None:
    """Asserts that only their owner can read the logs, and that they do not contain the key."""
    logs = list(folder.glob("*.log"))
    assert len(logs) >= 2, "a log per engine"
    for log in logs:
        assert log.stat().st_mode & 0o777 == 0o600
        assert key not in log.read_text()
