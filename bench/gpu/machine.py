"""The GPU that the scripts of this folder need, the description of its machine, and their files."""

import argparse
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

QUERY = "index,name,driver_version,memory.total,compute_cap,clocks.max.sm,power.limit"


def gpu_problem() -> str | None:
    """Returns why this machine has no usable NVIDIA GPU, in one line; None if it has one."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"torch cannot be imported: {str(error).splitlines()[0]}"
    if torch.version.cuda is None:
        return f"this needs an NVIDIA GPU, and torch {torch.__version__} is not a CUDA build"
    if not torch.cuda.is_available():
        return "this needs an NVIDIA GPU, and torch finds none"
    return None


def require_gpu(program: str) -> None:
    """Ends the program with one line and status 2 if there is no usable GPU."""
    problem = gpu_problem()
    if problem is not None:
        print(f"{program}: {problem}", file=sys.stderr)
        raise SystemExit(2)


def gpu_count() -> int:
    """Returns the number of GPUs that torch sees."""
    import torch

    return torch.cuda.device_count()


def has_fa3() -> bool:
    """Returns whether SGLang's FlashAttention 3 can run: on Hopper, and with its kernels."""
    from seer_sgl.plugin.speculation.exactness import on_hopper

    spec = importlib.util.find_spec("sgl_kernel")
    folders = spec.submodule_search_locations if spec else None
    kernels = any(list(Path(folder).glob("flash_ops*.so")) for folder in folders or ())
    return kernels and on_hopper()


def write_json(path: Path, content: Any) -> None:
    """Replaces a JSON file at once, so that a program that is ended leaves a complete one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)


def description() -> dict[str, Any]:
    """Returns the GPUs, the processors and the versions that figures were taken on."""
    return {
        "gpus": _output("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"),
        "topology": _output("nvidia-smi", "topo", "-m"),
        "cpu": _output("lscpu"),
        "memory": _output("free", "-g"),
        "nvcc": _output(_nvcc(), "--version"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": _output(sys.executable, "-m", "pip", "freeze"),
    }


def _nvcc() -> str:
    return shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def _output(*command: str) -> str:
    """Returns what a command prints; on an error, the reason."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (ended.stdout + ended.stderr).strip()


def main() -> None:
    """Writes the description of this machine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file")
    options = parser.parse_args()
    require_gpu("bench.gpu.machine")
    write_json(options.out, description())


if __name__ == "__main__":
    main()
