"""One local SGLang server process: its command line, its log, its end."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from seer_sgl.config import FlagValue
from seer_sgl.errors import ConfigError

from .plugin import API_KEY, PARENT_PID, cpu

SERVER_MODULE = "seer_sgl.engine.plugin.server"
LOG_TAIL_LINES = 8
LAST_LINE_CHARS = 100
STOP_GRACE_S = 5.0


def gpu_visible() -> bool:
    """Whether this machine has an NVIDIA GPU, told without importing torch."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/kfd").exists()


def engine_environment(threads: int | None) -> dict[str, str]:
    """Environment of a server process; on a machine without a GPU the CPU engine's switches."""
    environment = dict(os.environ)
    if not gpu_visible():
        environment[cpu.CPU_SWITCH] = "1"
        # Seeded sampling is compiled by torch.compile, which needs a C++ compiler on a CPU.
        environment["TORCHDYNAMO_DISABLE"] = "1"
        if threads is not None:
            # OpenMP threads of two servers that spin on one core make a step ten times slower.
            environment.setdefault("OMP_NUM_THREADS", str(threads))
    return environment


def server_flags(flags: Mapping[str, FlagValue]) -> list[str]:
    """SGLang command-line flags from a mapping: true is a bare flag, false leaves it out."""
    arguments: list[str] = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif isinstance(value, list):
            arguments += [flag, *map(str, value)]
        elif value is not False:
            arguments += [flag, str(value)]
    return arguments


def cpu_flags() -> dict[str, FlagValue]:
    """What a server on a machine without a GPU needs, as defaults.

    An idle scheduler burns a core unless it may sleep.
    """
    return {"device": "cpu", "attention-backend": "torch_native", "sleep-on-idle": True}


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_free_port(port: int, key: str) -> None:
    """Raise ConfigError when something listens on `port` already, or it is none."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OverflowError:
            raise ConfigError(f"{key}: there is no port {port}") from None
        except OSError as error:
            raise ConfigError(f"{key}: port {port}: {error.strerror}") from None


class EngineProcess:
    """A running server process with its log file."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log

    @classmethod
    async def start(
        cls,
        arguments: list[str],
        log: Path,
        cores: list[int] | None = None,
        api_key: str | None = None,
    ) -> "EngineProcess":
        """Start a server in a process group of its own, pinned to `cores` if given.

        Raises ConfigError when the log cannot be written.
        """
        environment = engine_environment(len(cores) if cores else 1)
        environment[PARENT_PID] = str(os.getpid())
        if api_key is not None:  # command lines are for everybody to read
            environment[API_KEY] = api_key
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            output = log.open("wb")
        except OSError as error:
            raise ConfigError(f"engine log {log}: {error.strerror}") from None
        with output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                SERVER_MODULE,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a Ctrl-C in the terminal is the driver's to handle
            )
        if cores:
            os.sched_setaffinity(process.pid, cores)  # before it has threads or children
        return cls(process, log)

    @property
    def pid(self) -> int:
        """Process id, also the id of the process group."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while the server runs."""
        return self._process.returncode

    def obituary(self) -> str | None:
        """How the process ended and where its last words are; None while it runs."""
        if self.exit_status is None:
            return None
        return f"its process ended with status {self.exit_status}; its log: {self.log}"

    def log_tail(self) -> str:
        """The last lines of the log that say something, indented, for an error message."""
        return "\n".join(f"    {line}" for line in self._log_lines()[-LOG_TAIL_LINES:])

    def last_line(self) -> str:
        """What the server said last, cut to a line's length."""
        return (self._log_lines() or ["nothing in its log yet"])[-1][:LAST_LINE_CHARS]

    def _log_lines(self) -> list[str]:
        text = self.log.read_text(errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    async def stop(self) -> None:
        """End the server and everything it started; returns when nothing of it is left."""
        family = _family(self.pid)
        _signal_group(self.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_GRACE_S)
        except TimeoutError:
            pass
        finally:
            _signal_group(self.pid, signal.SIGKILL)
            for member in family:
                if member.is_running():
                    member.kill()
        await self._process.wait()


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
