"""The fleet's interface to the code that starts, joins and stops single engines."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from seer_sgl.config import FleetConfig
from seer_sgl.kvpool.mooncake import Machines

from .server import ServerPlan


class EngineProcess(Protocol):
    """The server process of an engine, local or remote (local: processes.OwnedProcess).

    `log`: the file with its output.
    """

    log: Path

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while the process runs, or if it was lost with its machine."""

    def exit_reason(self) -> str | None:
        """Returns how the process ended, in one line; None while it runs."""

    def note_shared_memory(self) -> None:
        """Records the shared memory segments of a running server, for removal after its end."""


class EngineStart(NamedTuple):
    """An engine that is coming up. `url`: of this start.

    `process` and `instance`, its name for this start, are None for a server started elsewhere.
    """

    engine_id: str
    url: str
    timeout_s: float  # until it must be ready
    process: EngineProcess | None = None
    instance: str | None = None

    def exit_reason(self) -> str | None:
        """Returns how the process ended; None while it runs or if it was started elsewhere."""
        return None if self.process is None else self.process.exit_reason()


class Launcher(Protocol):
    """Starts or joins engines, and ends the servers that it started.

    `start`, `restart` and `stop` may be called at any time and concurrently. `aclose` ends
    every remaining server, also after a failed or cancelled start. By default both end none.
    """

    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        """Starts one more server, or joins the one at `url`; does not wait until it is ready.

        Raises ConfigError if the config has no room for the engine, or if this launcher requires
        or rejects a url. Raises EngineDelayed if it can be started later only, and EngineStartError
        if the engine is stopped meanwhile.
        """

    async def restart(self, engine_id: str, kv_tokens: int) -> EngineStart:
        """Restarts the server of an engine that has died; does not wait until it is ready.

        It waits until there is room for the server. kv_tokens: the KV capacity that it had and is
        to have. Raises like `start`.
        """

    def delay(self, engine_id: str) -> str | None:
        """Returns why a start waits for room; None if none does."""
        return None

    async def stop(self, engine_id: str) -> None:
        """Ends an engine's server and its child processes; a joined server keeps running."""
        return

    async def aclose(self) -> None:
        """Ends every remaining server."""
        return


class Site(NamedTuple):
    """Where the engines of a fleet run. `config`: the fleet's, with what is known only there.

    `address`: of the driver, for these engines. `launcher`: makes their launcher, which writes logs
    into a folder; None if they run already. `machines`: where a KV pool's processes run.
    """

    config: FleetConfig
    address: str
    launcher: Callable[[ServerPlan, Path], Launcher] | None
    machines: Callable[[Path], Machines] | None = None
