"""The parts of a session on a GPU machine: what is measured, in which order, by which command."""

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from seer_sgl.link.contract import API_KEY

from . import imposed
from .shapes import PLUGIN, TEXT

ROOT = Path(__file__).parents[2]
SHAPES = "shapes"
BACKEND = "engines.sglang.attention-backend"
CONFIGS: Mapping[str, Path] = {
    "reasoner": ROOT / "bench" / "gpu" / "reasoner.yaml",
    SHAPES: ROOT / "configs" / "bench-gpu.yaml",
}
SIMS = ROOT / "bench" / "full"
ENGINES = (2, 4)
FIRST = "first"  # the inputs and the part with the first figures of a larger model
FIRST_SHAPES = ("--groups", "16", "--mean", "400", "--longest", "2048")
FIRST_BENCH = ("--rounds", "1", "--arms", "group_round_robin,context,seer")
FIRST_SETTINGS = {"scheduling.chunk_tokens": 256}  # an eighth of the longest response
CONTEXTS = "64,1024,8192,30000"  # of the step times, tokens
# The same kinds of parts on a CPU, in minutes, to try a session out.
TINY = ("--size", "tiny", "--n", "8")
ON_CPU = "torch_native-float32"
SMOKE = (
    *("--servers", "plain,trees,pool"),
    *("--prompts", "4", "--samples", "4", "--tokens", "128", "--chunk", "48"),
)


class Machine(NamedTuple):
    """The properties of the machine that the commands depend on."""

    gpus: int = 1
    fa3: bool = False  # FlashAttention 3 can run: a Hopper GPU, and its kernels are installed
    shapes_fa3: bool = False  # the benchmarks of shapes use it: all of them, or none

    @classmethod
    def of(cls, gpus: int, fa3: bool, done: Mapping[str, Mapping[str, Any]]) -> "Machine":
        """Returns the properties in a session that has done these parts. Kernels that have arrived
        since change no benchmark of shapes: its figures are compared with those of the others."""
        begun = [one for name, one in done.items() if name.startswith(f"{SHAPES}-")]
        used = any(f"{BACKEND}=fa3" in str(one.get("command")) for one in begun)
        return cls(gpus, fa3, used if begun else fa3)


class Part(NamedTuple):
    """One part: its name, and the module of this project with its arguments."""

    name: str
    command: tuple[str, ...]


class Session(NamedTuple):
    """The folder of the results, and what the parts get besides: options of `seer-sgl bench` for
    the benchmarks, and of bench.gpu.shapes for their inputs."""

    out: Path
    bench: Sequence[str] = ()
    shapes: Sequence[str] = ()

    @property
    def inputs(self) -> Path:
        """The folder of the shape and its workload."""
        return self.out / "inputs"

    @property
    def first_inputs(self) -> Path:
        """The same, with a workload of minutes."""
        return self.out / f"inputs-{FIRST}"


def parts(session: Session, machine: Machine) -> list[Part]:
    """Returns all parts in order: first what says most in a minute, last what takes hours."""
    float32, bfloat16 = "triton-float32", "triton-bfloat16"
    model = ("--model", str(session.inputs / "model"))
    # Deterministic ones with decode steps as the plain ones, and what SGLang chooses on Hopper.
    steps = {"": ("--setup", bfloat16)} | (
        {"-fa3": ("--setup", "fa3-bfloat16")} if machine.fa3 else {}
    )
    shape = ("--inputs", str(session.inputs))
    chosen = ("--setup", "fa3-bfloat16" if machine.fa3 else bfloat16)
    fa3 = [_script(session, "exact-fa3", "exact", "--setups", "fa3-bfloat16")]
    return [
        _script(session, "machine", "machine"),
        _script(session, "kernels", "kernels"),
        *(
            _script(session, f"steps{name}", "step_times", *model, *at, "--contexts", CONTEXTS)
            for name, at in steps.items()
        ),
        _script(session, "trace-shape", "step_trace", *shape, *chosen),
        # An engine per GPU: two that take turns on one hide what even load gains.
        _benchmark(session, machine, SHAPES, machine.gpus, first=True),
        _script(session, "smoke", "exact", "--setups", float32, *SMOKE),
        Part("doctor", ("seer_sgl", "doctor")),
        _script(session, "exact-triton", "exact", "--setups", f"{bfloat16},{float32}"),
        *(fa3 if machine.fa3 else []),
        _script(session, "exact-greedy", "exact", "--setups", f"{bfloat16}-greedy"),
        _benchmark(session, machine, "reasoner", ENGINES[0]),
        *(_benchmark(session, machine, SHAPES, engines) for engines in ENGINES),
        _benchmark(session, machine, "reasoner", ENGINES[1]),
        _script(session, "trace", "step_trace"),
        _script(session, "exact-flashinfer", "exact", "--setups", "flashinfer-bfloat16"),
        _script(session, "kv-moves", "kv_moves"),
    ]


def rehearsal(session: Session) -> list[Part]:
    """Returns parts for a machine without a GPU. Their figures say nothing about GPUs."""
    setup, few = ("--setup", ON_CPU), ("--prompts", "2", "--samples", "2", "--tokens", "64")
    shape = {
        **_shape_settings(session, Machine(), session.first_inputs),
        "engines.count": 1,
        "engines.sglang.load-format": "dummy",
        "engines.sglang.skip-tokenizer-init": "true",
        "sampling.ignore_eos": "true",
        "kv_pool.backend": "auto",
        "bench.colocate_servers": "false",
        "bench.seeds": "[1]",
    }
    config, out = ROOT / "configs" / "bench-cpu.yaml", session.out / "shapes-first"
    own = ["--config", str(config), "--out", str(out), *_set(shape)]
    return [
        _script(session, "steps", "step_times", *setup, "--contexts", "64", "--batch", "4"),
        _script(session, "exact", "exact", "--setups", ON_CPU, "--servers", "plain", *few),
        Part("shapes-first", ("bench.full", *own, *FIRST_BENCH, *session.bench)),
    ]


def inputs(session: Session) -> list[Part]:
    """Returns the parts that write the shape and its workloads, before all others."""
    folders = {session.inputs: (), session.first_inputs: FIRST_SHAPES}
    return [
        Part(folder.name, ("bench.gpu.shapes", "--out", str(folder), *session.shapes, *more))
        for folder, more in folders.items()
    ]


def configs(session: Session, machine: Machine) -> dict[Path, str]:
    """Returns the configs of the benchmarks by file. With several GPUs each engine has its own."""
    texts = {path.name: path.read_text() for path in CONFIGS.values()}
    if machine.gpus > 1:
        texts = {name: re.sub(r"(?m)^ +base-gpu-id:.*\n", "", text) for name, text in texts.items()}
    return {session.out / "configs" / name: text for name, text in texts.items()}


def _script(session: Session, name: str, module: str, *arguments: str) -> Part:
    return Part(name, (f"bench.gpu.{module}", str(session.out / f"{name}.json"), *arguments))


def _benchmark(
    session: Session, machine: Machine, kind: str, engines: int, *, first: bool = False
) -> Part:
    """Returns a benchmark. first: with the workload of minutes, three arms, and no prediction,
    whose constants would take minutes."""
    name = f"{kind}-{FIRST if first else engines}"
    own = [
        "--config",
        str(session.out / "configs" / CONFIGS[kind].name),
        "--out",
        str(session.out / name),
    ]
    own += _set(FIRST_SETTINGS) if first else ["--sim", str(SIMS / f"gpu-{kind}.yaml")]
    own += ["--engines", str(engines)]
    if kind == SHAPES:
        folder = session.first_inputs if first else session.inputs
        if not first and find_spec("sglang_router") and not os.environ.get(API_KEY):
            own += ["--router"]
        own += _set(_shape_settings(session, machine, folder))
    return Part(name, ("bench.full", *own, *(FIRST_BENCH if first else ()), *session.bench))


def _set(settings: Mapping[str, object]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def _shape_settings(session: Session, machine: Machine, folder: Path) -> dict[str, object]:
    settings: dict[str, object] = {
        "model.path": folder / "model",
        "bench.workload": folder / "trace.jsonl",
    }
    if machine.shapes_fa3:
        settings[BACKEND] = "fa3"
    if not any(word.startswith("model.path=") for word in session.bench):  # no real model
        for name, value in imposed.environment(folder / PLUGIN, folder / TEXT).items():
            settings[f"engines.environment.{name}"] = value
    return settings
