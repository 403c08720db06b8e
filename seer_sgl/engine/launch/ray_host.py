"""The Ray actors that run the server of one engine, or a store node of the pool, on their node.

The process is a child of the actor. It ends with the actor, and so with its node, its Ray and its
driver (processes/child.py).
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from seer_sgl.errors import ConfigError
from seer_sgl.kvpool.mooncake import STORE_VARIABLES, node_command
from seer_sgl.kvpool.packages import load_problem
from seer_sgl.processes.child import OwnedProcess, free_port, hold_ports
from seer_sgl.processes.loopback import is_loopback

from .exact import require_exact
from .process import api_key, gpu_visible, require_model, require_sglang
from .server import Place, ServerPlan, start_planned

FOLLOW_S = 2.0  # a call of `follow` returns after this time at the latest
MOST_BYTES = 1 << 20  # of the log, per call


class Hosted(NamedTuple):
    """A server on a node of the cluster. `node_id`: Ray's name of the node."""

    host: str
    port: int
    pid: int
    node_id: str


class Output(NamedTuple):
    """A part of a server's log, and its exit status once the log is at its end."""

    log: bytes
    exit_status: int | None


class ProcessHost:
    """Runs one process on the node where Ray has placed this actor."""

    def __init__(self) -> None:
        hold_ports()
        self._process: OwnedProcess | None = None
        # Waited for by one task: asyncio keeps each cancelled wait for a process until its end.
        self._end: asyncio.Task[int] | None = None
        self._log: BinaryIO | None = None  # can be read after `stop`, which removes the file
        self._folder: Path | None = None  # with the log; it stays if this actor is killed

    def _new_log(self, name: str) -> Path:
        self._folder = Path(tempfile.mkdtemp(prefix="seer-sgl-"))
        return self._folder / name

    def _hosted(self, host: str, port: int) -> Hosted:
        import ray

        assert self._process is not None
        self._end = asyncio.create_task(self._process.wait())
        self._log = self._process.log.open("rb")
        return Hosted(host, port, self._process.pid, ray.get_runtime_context().get_node_id())

    async def follow(self, offset: int) -> Output:
        """Returns the log from `offset` on, once there is enough of it or the server has ended."""
        process, log, end = self._process, self._log, self._end
        assert process is not None
        assert log is not None
        assert end is not None
        if os.fstat(log.fileno()).st_size - offset < MOST_BYTES:
            await asyncio.wait({end}, timeout=FOLLOW_S)
        status = process.exit_status  # before the log, which is complete then
        text = os.pread(log.fileno(), MOST_BYTES, offset)
        return Output(text, status if len(text) < MOST_BYTES else None)

    async def note_shared_memory(self) -> None:
        """Records the shared memory of the server, for removal after its end."""
        assert self._process is not None
        self._process.note_shared_memory()

    async def stop(self) -> None:
        """Ends the server and its child processes, and removes its log here."""
        if self._process is not None:
            await self._process.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class EngineHost(ProcessHost):
    """Starts the server of an engine."""

    async def start(self, plan: ServerPlan, instance: str, kv_tokens: int | None) -> Hosted:
        """Starts the server on the node's address at a free port. Raises ConfigError."""
        config, host = plan.config, _own_address()
        require_sglang()
        require_model(config.model.path or "")
        require_exact(config, gpu_visible())
        if not is_loopback(host) and api_key(config.engines) is None:
            raise ConfigError(f"engines.api_key: missing for a server at {host}")
        place = Place(host, free_port(host))  # Ray shows the actor its own GPUs only
        log = self._new_log("engine.log")
        self._process = await start_planned(plan, place, instance, log, kv_tokens)
        return self._hosted(host, place.port)


class StoreHost(ProcessHost):
    """Starts a store node of Mooncake."""

    async def start(self, settings: Mapping[str, str], environment: Mapping[str, str]) -> Hosted:
        """Starts the store node on the node's address at a free port. Raises ConfigError."""
        if problem := load_problem():
            raise ConfigError(f"kv_pool.backend: on a node of the cluster: {problem}")
        host = _own_address()
        port = free_port(host)
        command = node_command("store", {**settings, "local_hostname": f"{host}:{port}"})
        variables = {**os.environ, **STORE_VARIABLES, **environment}
        self._process = await OwnedProcess.start(command, self._new_log("store.log"), variables)
        return self._hosted(host, port)


def _own_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
