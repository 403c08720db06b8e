"""The process of an SGLang server: checks of its machine and model, environment and flags."""

import functools
import importlib.util
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from seer_sgl.config import EnginesConfig, FlagValue, ModelConfig
from seer_sgl.errors import ConfigError
from seer_sgl.link import contract
from seer_sgl.link.contract import API_KEY

NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"  # NCCL's environment variable
# Files of NVIDIA's and AMD's drivers. A sandbox may have the device without the /proc entry.
GPU_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/kfd")
# SGLang closes a connection that was idle for 5 s. A server that was stopped for longer does so
# before it reads a chunk that was sent on it meanwhile. The driver does not use one after 4 s.
KEEP_ALIVE = {"SGLANG_TIMEOUT_KEEP_ALIVE": "600"}
SERVER_MODULE = "seer_sgl.plugin.server"


def gpu_visible() -> bool:
    """Returns whether this machine has a GPU, without importing torch."""
    return any(Path(sign).exists() for sign in GPU_SIGNS)


@functools.cache
def hopper_visible() -> bool:
    """Returns whether all GPUs of this machine are NVIDIA's Hopper, without importing torch."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return {capability.split(".")[0] for capability in done.stdout.split()} == {"9"}


def api_key(config: EnginesConfig) -> str | None:
    """Returns the bearer token of the servers, from the config or the environment."""
    return config.api_key or os.environ.get(API_KEY) or None


def require_sglang() -> None:
    """Raises ConfigError if SGLang is not installed in this environment."""
    if importlib.util.find_spec("sglang") is None:
        raise ConfigError("SGLang is not installed; `seer-sgl doctor` prints the command for it")


def require_model(path: str) -> None:
    """Raises ConfigError unless `path` is a model folder or may be a model hub id."""
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model.path: {path} has no config.json")
        return
    if "://" in path:
        return
    hub_id = path.count("/") == 1 and not path.startswith(("/", ".", "~"))
    if not hub_id or folder.parent.is_dir():
        raise ConfigError(f"model.path: {path} does not exist")


def engine_environment(threads: int | None) -> dict[str, str]:
    """Returns the environment of a server process, with the CPU settings if there is no GPU."""
    environment = KEEP_ALIVE | os.environ
    if not gpu_visible():
        environment[contract.CPU_SWITCH] = "1"
        # torch.compile compiles seeded sampling, and on a CPU needs a C++ compiler for it.
        environment["TORCHDYNAMO_DISABLE"] = "1"
        if threads is not None:
            # If OpenMP threads of two servers spin on one core, a step is ten times slower.
            environment.setdefault("OMP_NUM_THREADS", str(threads))
    return environment


def server_flags(flags: Mapping[str, FlagValue]) -> list[str]:
    """Returns SGLang command-line flags: true makes a bare flag, false omits the flag."""
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


def model_flags(model: ModelConfig) -> dict[str, FlagValue]:
    """Returns the flags for the model, without the values that the config omits."""
    flags: dict[str, FlagValue] = {}
    if model.path is not None:
        flags["model-path"] = model.path
    if model.tokenizer_path is not None:
        flags["tokenizer-path"] = model.tokenizer_path
    if model.trust_remote_code:
        flags["trust-remote-code"] = True
    return flags


def cpu_flags() -> dict[str, FlagValue]:
    """Returns the default flags for a machine without a GPU.

    Without `sleep-on-idle`, an idle scheduler uses a full core. `mm-attention-backend`: the
    attention of a vision tower, for which SGLang takes a kernel that needs AMX.
    """
    return {
        "device": "cpu",
        "attention-backend": "torch_native",
        "mm-attention-backend": "sdpa",
        "sleep-on-idle": True,
    }


def open_ports(
    ranks: int, dist_init_addr: str | None, environment: Mapping[str, str]
) -> Iterator[str]:
    """Yields one line per port that the ranks of a server open to other machines.

    ranks: of one copy of the model.
    """
    if dist_init_addr is not None:
        yield f"torch listens for ranks of other machines (--dist-init-addr {dist_init_addr})"
    elif gpu_visible() and ranks > 1 and NCCL_INTERFACE not in environment:
        yield (
            f"NCCL listens on this machine's network; set {NCCL_INTERFACE}=lo in the engines' "
            "environment to keep it on loopback, unless a trainer on another machine sends weights"
        )
