"""Lets OpenRLHF run without a GPU: the hook of the driver and of every Ray worker.

OpenRLHF calls torch.cuda and asks Ray for GPUs wherever it runs. `install` answers those calls for
a CPU, and `ray_options` gives Ray as many logical GPUs as OpenRLHF asks for. Ray carries `install`
to its workers by value, so nothing of the tests has to be on their path.
"""

import importlib
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).resolve().parent)

# Options of ray.init. There are more logical GPUs and CPUs than OpenRLHF's actors ask for, on any
# machine. Samples are small; Ray's default store would take 30 % of the memory.
RESOURCES: dict[str, Any] = {
    "num_cpus": 8,
    "num_gpus": 4,
    "object_store_memory": 200 * 2**20,
    "include_dashboard": False,
}


class CpuDevice(str):
    """The current device. OpenRLHF moves tensors to it, and also writes it as `cuda:{device}`."""

    __slots__ = ()

    def __new__(cls) -> "CpuDevice":
        return super().__new__(cls, "cpu")

    def __format__(self, spec: str) -> str:
        return "0"  # a device that OpenRLHF names, and moves nothing to


def add_stand_ins() -> None:
    """Makes vllm and flash_attn importable where they are not installed.

    The folder is the last one on sys.path: an installed package is always found before it.
    """
    if FOLDER not in sys.path:
        sys.path.append(FOLDER)


def install() -> None:
    """Makes the stand-ins importable and adapts torch and DeepSpeed to a CPU, in this process.

    Raises RuntimeError on a machine with a GPU, where nothing has to stand in.
    """
    os.environ["DS_ACCELERATOR"] = "cpu"  # DeepSpeed reads it at its import
    add_stand_ins()
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        raise RuntimeError(
            "the stand-ins are for machines without a GPU: set CUDA_VISIBLE_DEVICES="
        )
    torch.cuda.current_device = CpuDevice
    for name in ("set_device", "synchronize", "empty_cache", "current_stream"):
        setattr(torch.cuda, name, _no_operation())
    mesh: Any = importlib.import_module("torch.distributed.device_mesh")
    mesh.init_device_mesh = _mesh_of_cpus(mesh.init_device_mesh)
    deepspeed: Any = importlib.import_module("deepspeed")
    deepspeed.initialize = _with_torch_adam(deepspeed.initialize)


def ray_options(runtime_env: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Returns the options of ray.init for a CPU: the caller's, RESOURCES, and the workers' hook.

    A Ray that runs already, at RAY_ADDRESS, has its own resources.
    """
    cloudpickle = importlib.import_module("ray.cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    environment = {**(runtime_env or {}), "worker_process_setup_hook": install}
    resources = {} if "RAY_ADDRESS" in os.environ else RESOURCES
    return {**options, **resources, "runtime_env": environment}


def _no_operation() -> Callable[..., None]:
    """Returns a function that does nothing, a new one: torch's compiler has a rule per function."""

    def no_operation(*_: Any, **__: Any) -> None:
        return

    return no_operation


def _mesh_of_cpus(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def init_device_mesh(device_type: str, *args: Any, **options: Any) -> Any:
        return original("cpu" if device_type == "cuda" else device_type, *args, **options)

    return init_device_mesh


def _with_torch_adam(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def initialize(*args: Any, config: Any = None, **options: Any) -> Any:
        if config and "optimizer" in config:
            config["optimizer"]["params"]["torch_adam"] = True  # others are compiled at first use
        return original(*args, config=config, **options)

    return initialize
