"""`seer-sgl doctor`: checks this machine, and prints the command that fixes each failure."""

import ctypes.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import psutil
from rich.console import Console

from .config.ready import REQUIREMENTS
from .engine.launch.process import engine_environment, gpu_visible
from .errors import first_line
from .kvpool import packages
from .processes import loopback

SGLANG_VERSION = "0.5.21"
SGLANG_TESTED = ("0.5.20", SGLANG_VERSION, "0.5.23")  # docs/sglang-versions.md
SGLANG_CUDA = 13  # the CUDA version that SGLANG_VERSION is built for
TORCH = "torch==2.13.0"  # the version that SGLANG_VERSION requires
CHECKOUT = Path(__file__).resolve().parents[1]
ENGINE_MEMORY_GB = 2.0  # one CPU server, imports included
PLUGIN_TIMEOUT_S = 180.0

# Loads SGLang's plugins as a scheduler process does. Prints our hooks that are missing, and the
# abilities that are off.
PLUGIN_PROBE = """
from seer_sgl.plugin import cpu
cpu.prepare()
from sglang.srt.plugins import load_plugins
load_plugins()
from seer_sgl.plugin.plugin import current
plugin = current()
if plugin is None:
    print("hooks:", 0, "missing:", "off:")
else:
    print("hooks:", len(plugin.hooks), "missing:", *plugin.missing(), "off:", *plugin.off)
"""


class Verdict(Enum):
    """The result of a check. Only MISSING makes the exit status 1."""

    OK = "ok"
    OPTIONAL = "optional"
    MISSING = "missing"


class Check(NamedTuple):
    """One line of the output: the result of a check, and the command that fixes a failure."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""


def examine(console: Console) -> bool:
    """Prints every check, and returns whether everything required is present."""
    healthy = True
    for check in checks():
        healthy = healthy and check.verdict is not Verdict.MISSING
        color = {"ok": "green", "optional": "yellow", "missing": "red"}[check.verdict.value]
        fix = f"; fix: {check.fix}" if check.fix else ""
        console.print(f"[{color}]{check.verdict.value:9}[/]", end="")
        console.print(f"{check.name:10}{check.found}{fix}", markup=False, soft_wrap=True)
    return healthy


def checks() -> Iterator[Check]:
    checks: tuple[Callable[[], Check], ...] = (
        check_python,
        check_torch,
        check_sglang,
        check_plugin,
        check_gpu,
        check_memory,
        check_mooncake,
        check_ports,
        check_libraries,
    )
    for check in checks:
        yield check()


def install_command() -> str:
    """Returns the command that installs SGLang: make in a checkout, else uv with our files."""
    if _in_checkout():
        return "make venv"
    install = ["pip", "install", "--python", sys.executable]
    if gpu_visible():
        overrides = str(REQUIREMENTS["gpu-overrides"])
        return _with_uv(["uv", *install, "--override", overrides, "seer-sgl[sglang]"])
    # Compiled at once: the first engines would compile it while they start, for minutes.
    pinned = ["uv", *install, "--compile-bytecode", "--no-deps", "-r", "-"]
    return f"pip install {TORCH} && {_with_uv(pinned, 'seer-sgl requirements cpu | ')}"


def _in_checkout() -> bool:
    return all((CHECKOUT / name).is_file() for name in ("Makefile", "requirements-cpu.txt"))


def _with_uv(command: Sequence[str], source: str = "") -> str:
    """Returns a command line of uv, behind uv's own installation where it is missing."""
    line = source + shlex.join(command)
    return line if shutil.which("uv") else f"pip install uv && {line}"


def check_python() -> Check:
    return Check("python", Verdict.OK, f"{platform.python_version()} ({sys.executable})")


def check_torch() -> Check:
    version = packages.version("torch")
    if version is None:
        return Check("torch", Verdict.MISSING, "not installed", install_command())
    try:
        import torch
    except (ImportError, OSError) as error:
        found = f"cannot be imported: {first_line(error)}"
        return Check("torch", Verdict.MISSING, found, install_command())

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    found = f"{torch.__version__}, {build} build"
    if gpu_visible() and not torch.cuda.is_available():
        return Check("torch", Verdict.MISSING, f"{found}, sees no GPU", install_command())
    return Check("torch", Verdict.OK, found)


def check_sglang() -> Check:
    version = packages.version("sglang")
    if version is None:
        return Check("sglang", Verdict.MISSING, "not installed", install_command())
    if version in SGLANG_TESTED:
        return Check("sglang", Verdict.OK, version)
    found = f"{version}, not tested with: {', '.join(SGLANG_TESTED)} are"
    return Check("sglang", Verdict.OPTIONAL, found, install_command())


def check_plugin() -> Check:
    """Checks in a new process that SGLang finds our plugin and that all hooks can be set."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PLUGIN_PROBE],
            env=engine_environment(None),
            capture_output=True,
            text=True,
            timeout=PLUGIN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        found = f"SGLang did not load in {PLUGIN_TIMEOUT_S:g} s"
        return Check("plugin", Verdict.MISSING, found, "seer-sgl doctor, on a quieter machine")
    lines = probe.stdout.strip().splitlines()
    if probe.returncode != 0 or not lines:
        why = (probe.stderr.strip().splitlines() or ["no output"])[-1]
        return Check("plugin", Verdict.MISSING, f"SGLang does not load: {why}", install_command())
    hooks, _, rest = lines[-1].removeprefix("hooks: ").partition(" missing:")
    missing, _, off = rest.partition(" off:")
    if hooks == "0":
        return Check("plugin", Verdict.MISSING, "SGLang does not find it", "pip install seer-sgl")
    if missing.strip():
        return Check("plugin", Verdict.MISSING, f"cannot hook{missing}", install_command())
    found = f"loaded by SGLang, {hooks} hooks in place"
    if off:
        why = f"{found}; this SGLang lacks what {', '.join(off.split())} need"
        return Check("plugin", Verdict.OPTIONAL, why, install_command())
    return Check("plugin", Verdict.OK, found)


def check_gpu() -> Check:
    if not gpu_visible():
        return Check("gpu", Verdict.OK, "none: engines run on the CPU")
    try:
        import torch
    except (ImportError, OSError):
        return Check("gpu", Verdict.MISSING, "not usable without torch", install_command())

    count = torch.cuda.device_count()
    if not count:
        return Check("gpu", Verdict.MISSING, "not usable by torch", install_command())
    name = torch.cuda.get_device_name(0)
    return Check("gpu", Verdict.OK, f"{count} x {name}")


def check_memory() -> Check:
    free = psutil.virtual_memory().available / (1 << 30)
    found = f"{free:.1f} GiB free, {len(os.sched_getaffinity(0))} cores"
    if free < ENGINE_MEMORY_GB:
        fix = f"free {ENGINE_MEMORY_GB - free:.1f} GiB: an engine needs {ENGINE_MEMORY_GB:g} GiB"
        return Check("memory", Verdict.MISSING, found, fix)
    return Check("memory", Verdict.OK, found)


def check_mooncake() -> Check:
    installed, cuda = packages.installed(), cuda_version()
    install = f"pip install {packages.fitting(cuda)}=={packages.VERSION}"
    if not installed:
        found = "not installed: `kv_pool.backend: auto` uses files instead"
        return Check("mooncake", Verdict.OPTIONAL, found, install)
    found = ", ".join(f"{name} {version}" for name, version in installed.items())
    reinstall = f"pip uninstall --yes {' '.join(installed)} && {install}"
    if why := packages.mismatch(installed, cuda):
        return Check("mooncake", Verdict.OPTIONAL, f"{found}: {why}", reinstall)
    try:
        packages.load_store()
    except (ImportError, OSError) as error:
        why = first_line(error)
        rdma = any(f"lib{name}." in why for name in _rdma_libraries())
        fix = _rdma_command() if rdma else reinstall
        return Check("mooncake", Verdict.OPTIONAL, f"{found} cannot be loaded: {why}", fix)
    return Check("mooncake", Verdict.OK, found)


def cuda_version() -> int | None:
    """Returns the major CUDA version of torch, or without torch of the SGLang to be installed.

    None for a CPU build or a machine without a GPU.
    """
    if not gpu_visible():
        return None
    try:
        import torch
    except (ImportError, OSError):
        return SGLANG_CUDA
    return int(torch.version.cuda.partition(".")[0]) if torch.version.cuda else None


def _rdma_libraries() -> dict[str, str]:
    """Returns the system libraries that Mooncake loads, by name, with their Debian packages."""
    if gpu_visible():  # Mooncake for CUDA needs one more
        return {"ibverbs": "libibverbs1", "mlx5": "ibverbs-providers"}
    return {"ibverbs": "libibverbs1"}


def _rdma_command() -> str:
    return f"sudo apt-get install {' '.join(_rdma_libraries().values())}"


def check_ports() -> Check:
    """Checks which ports a local fleet opens to other machines."""
    why = loopback.refusal()
    if why is not None:
        fix = "kv_pool.backend: file, or a firewall and kv_pool.open_ports: true"
        return Check("ports", Verdict.OPTIONAL, f"no Mooncake in a local fleet: {why}", fix)
    found = "a local fleet listens on loopback only"
    if gpu_visible():
        found += "; NCCL, for an engine's ranks, also listens on this machine's network"
    return Check("ports", Verdict.OK, found)


def check_libraries() -> Check:
    """Checks the system libraries that Mooncake loads and pip cannot install."""
    libraries = [f"lib{name}" for name in _rdma_libraries()]
    absent = [name for name in libraries if ctypes.util.find_library(name[3:]) is None]
    if absent:
        found = f"no {', no '.join(absent)}, which Mooncake loads"
        return Check("libraries", Verdict.OPTIONAL, found, _rdma_command())
    return Check("libraries", Verdict.OK, ", ".join(libraries))
