"""One process of a local Mooncake: `python -m seer_sgl.kvpool.node master|store|probe JSON`.

`master` runs `mooncake_master` (Mooncake's metadata service). `store` mounts a segment of this
machine's memory through Mooncake's own client library. Both end with the driver that started them.
Mooncake's own store service is not used, because it opens a REST port on all interfaces. `probe`
checks a running master.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

from seer_sgl.processes import loopback
from seer_sgl.processes.child import end_with_parent

from .packages import load_store

MOUNTED = "segment mounted"  # a store node's line once its memory is part of the pool
P2P = "P2PHANDSHAKE"  # clients find each other through the master: no metadata server


def master(settings: dict[str, Any]) -> int:
    """Runs `mooncake_master` on loopback. `settings`: its flags. Returns the exit status."""
    spec = importlib.util.find_spec("mooncake")
    assert spec is not None
    assert spec.origin is not None
    binary = Path(spec.origin).parent / "mooncake_master"
    process = subprocess.Popen([str(binary), *(f"--{k}={v}" for k, v in settings.items())])
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return process.wait()


def store(settings: dict[str, Any]) -> int:
    """Mounts a segment until SIGTERM. `settings`: of MooncakeDistributedStore.setup.

    Returns the exit status.
    """
    client = load_store().MooncakeDistributedStore()
    status = client.setup(settings)
    if status != 0:
        print(f"Mooncake refuses the segment: error {status}", flush=True)
        return 1
    loopback.confine_if_wanted()
    print(MOUNTED, flush=True)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()
    client.close()
    return 0


def probe(settings: dict[str, Any]) -> int:
    """Puts and gets one small object to check for a master and mounted memory.

    Returns the exit status.
    """
    client = load_store().MooncakeDistributedStore()
    if client.setup(settings) != 0:
        print("it is not a Mooncake master", flush=True)
        return 1
    loopback.confine_if_wanted()
    key, value = f"seer-probe-{uuid.uuid4().hex}", b"seer" * 256
    if client.put(key, value) != 0 or client.get(key) != value:
        print("no store node has memory mounted there", flush=True)
        return 1
    client.remove(key, True)
    return 0


def main(kind: str, settings: str) -> int:
    """Runs the process of this kind. `settings`: JSON. Returns the exit status."""
    end_with_parent()
    return {"master": master, "store": store, "probe": probe}[kind](json.loads(settings))


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # Mooncake's threads do not end by themselves
