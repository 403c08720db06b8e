"""`seer-sgl engine`: one SGLang server in this terminal."""

import os
import sys
from typing import NoReturn

from seer_sgl.errors import ConfigError
from seer_sgl.processes import require_free_port

from .fleet import require_model
from .process import SERVER_MODULE, cpu_flags, engine_environment, gpu_visible, server_flags

SGLANG_DEFAULT_PORT = 30000
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def exec_engine(flags: list[str]) -> NoReturn:
    """Replace this process by the server. `flags`: SGLang's own, passed through untouched.

    Raises ConfigError for a missing model, a port in use, or a host without a token.
    """
    asked_for_help = bool({"-h", "--help"} & set(flags))
    if not asked_for_help:
        model = _value(flags, "--model-path", "--model")
        if model is not None:
            require_model(model)
        elif _value(flags, "--config") is None:  # SGLang's own file may name the model
            raise ConfigError("engine: --model-path is missing")
        host = _value(flags, "--host") or LOOPBACK[0]
        if host not in LOOPBACK and _value(flags, "--api-key") is None:
            raise ConfigError(f"engine: --host {host} listens beyond loopback: add --api-key")
        port = _value(flags, "--port") or str(SGLANG_DEFAULT_PORT)
        if not port.isdigit():
            raise ConfigError(f"engine: --port {port} is not a number")
        require_free_port(int(port), "engine: --port")
    # Our defaults come first: of a repeated flag SGLang takes the last.
    defaults = [] if gpu_visible() else server_flags(cpu_flags())
    command = [sys.executable, "-m", SERVER_MODULE, *defaults, *flags]
    sys.stdout.flush()
    os.execve(sys.executable, command, engine_environment(None))


def _value(flags: list[str], *names: str) -> str | None:
    """The last value given for a flag, as `--flag value` or `--flag=value`."""
    found = None
    for index, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        if name in names:
            found = value if equals else (flags[index + 1] if index + 1 < len(flags) else None)
    return found
