"""Faults of the KV pool's storage backend, injected into the engines of a test.

As a plugin of SGLang (`load`) it wraps the backend's calls. Before each call it looks into the
folder FAULTS for the file of a fault, which the test writes there and removes.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from bench.engine_plugin import environment

# Environment variables.
FAULTS = "SEER_SGL_KV_FAULTS"
STUCK_S = "SEER_SGL_KV_FAULTS_STUCK_S"  # when a call of the pool counts as stuck
POLL_S = 0.02
CALLS = {  # of the backends `mooncake` and `file`
    "lookup": ("batch_exists",),
    "read": ("batch_get_v1", "batch_get"),
    "write": ("batch_set_v1", "batch_set"),
}
Kind = Literal["error", "block", "end"]


class Fault(msgspec.Struct, frozen=True):
    """A fault of the calls of one thread: lookup, read or write.

    kind: an error; no return until the fault is removed; the end of the thread. times: error calls,
    in each engine; 0: all of them. A fault that blocks or ends strikes one thread of one engine.
    """

    thread: str
    kind: Kind
    times: int = 0


class Faults:
    """The test's side: the folder of the faults, which engines started with `variables` read.

    `stuck_s`: when an engine reports that a call of the pool does not return.
    """

    def __init__(self, folder: Path, stuck_s: float = 6.0) -> None:
        folder.mkdir()
        self._folder = folder
        self.variables = {
            **environment(folder / "plugin", "seer_sgl_kv_faults", f"{__name__}:load"),
            FAULTS: str(folder),
            STUCK_S: f"{stuck_s}",
        }

    def set(self, *faults: Fault) -> None:
        """Removes the faults that are set, and sets others."""
        for path in [*self._folder.glob("*.fault"), *self._folder.glob("*.hit")]:
            path.unlink()
        for i, fault in enumerate(faults):
            new = self._folder / f"{i}.new"
            new.write_bytes(msgspec.json.encode(fault))
            new.rename(self._folder / f"{i}.fault")

    @property
    def hits(self) -> int:
        """Calls that faults have struck since `set`, in all engines."""
        return sum(len(path.read_text().split()) for path in self._folder.glob("*.hit"))


class _Injected:
    """The engine's side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def before(self, thread: str) -> None:
        """Applies the faults that are set for the calls of a thread."""
        for path in sorted(self._folder.glob("*.fault")):
            try:
                fault = msgspec.json.decode(path.read_bytes(), type=Fault)
            except FileNotFoundError:
                continue
            if fault.thread == thread:
                self._strike(path, fault)

    def _strike(self, path: Path, fault: Fault) -> None:
        hit = path.with_suffix(".hit")
        mine = f"{os.getpid()}"
        seen = hit.read_text().split() if hit.exists() else []
        if fault.kind == "error":
            if fault.times and seen.count(mine) >= fault.times:
                return
        elif seen:  # it has struck
            return
        with hit.open("a") as hits:
            hits.write(f"{mine}\n")
        if fault.kind == "error":
            raise OSError("injected by the test")
        if fault.kind == "end":
            raise SystemExit("injected by the test")
        while path.exists():
            time.sleep(POLL_S)


def _wrapped(call: Callable[..., Any], thread: str, injected: _Injected) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        # Of SGLang's own threads, not of our bookkeeping.
        if threading.current_thread().name != "seer-sgl pool":
            injected.before(thread)
        return call(*args, **kwargs)

    return run


def load() -> None:
    """Wraps the calls of SGLang's backends, below the plugin; called by SGLang's `load_plugins`."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile
    from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore

    from seer_sgl.plugin import kv_threads

    kv_threads.STUCK_S = float(os.environ[STUCK_S])
    injected = _Injected(Path(os.environ[FAULTS]))
    for backend in (HiCacheFile, MooncakeStore):
        for thread, names in CALLS.items():
            for name in names:
                setattr(backend, name, _wrapped(getattr(backend, name), thread, injected))
