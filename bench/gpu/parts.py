"""The parts of a session on a GPU machine: what is measured, in which order, by which command."""

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from seer_sgl.link.contract import API_KEY

ROOT = Path(__file__).parents[2]
SHAPES = "shapes"
CONFIGS: Mapping[str, Path] = {
    "reasoner": ROOT / "bench" / "gpu" / "reasoner.yaml",
    SHAPES: ROOT / "configs" / "bench-gpu.yaml",
}
SIMS = ROOT / "bench" / "full"
ENGINES = (2, 4)
CONTEXTS = "64,1024,8192,30000"  # of the step times, tokens
SMOKE = (
    *("--servers", "plain,trees,pool"),
    *("--prompts", "4", "--samples", "4", "--tokens", "128", "--chunk", "48"),
)


class Machine(NamedTuple):
    """The properties of the machine that the commands depend on."""

    gpus: int = 1
    fa3: bool = False  # FlashAttention 3 can run: a Hopper GPU, and its kernels are installed


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


def parts(session: Session, machine: Machine) -> list[Part]:
    """Returns all parts in order: first what says most in a minute, last what takes hours."""
    float32, bfloat16 = "triton-float32", "triton-bfloat16"
    model = ("--model", str(session.inputs / "model"))
    # Deterministic ones with decode steps as the plain ones, and what SGLang chooses on Hopper.
    steps = {"": ("--setup", bfloat16)} | (
        {"-fa3": ("--setup", "fa3-bfloat16")} if machine.fa3 else {}
    )
    fa3 = [_script(session, "exact-fa3", "exact", "--setups", "fa3-bfloat16")]
    return [
        _script(session, "machine", "machine"),
        _script(session, "kernels", "kernels"),
        *(
            _script(session, f"steps{name}", "step_times", *model, *at, "--contexts", CONTEXTS)
            for name, at in steps.items()
        ),
        _script(session, "smoke", "exact", "--setups", float32, *SMOKE),
        _benchmark(session, machine, "shapes", ENGINES[0]),
        _script(session, "exact-triton", "exact", "--setups", f"{bfloat16},{float32}"),
        *(fa3 if machine.fa3 else []),
        _script(session, "exact-greedy", "exact", "--setups", f"{bfloat16}-greedy"),
        *(_benchmark(session, machine, "reasoner", engines) for engines in ENGINES),
        _script(session, "trace-shape", "step_trace", "--inputs", str(session.inputs)),
        *(_benchmark(session, machine, "shapes", engines) for engines in ENGINES[1:]),
        _script(session, "trace", "step_trace"),
        _script(session, "exact-flashinfer", "exact", "--setups", "flashinfer-bfloat16"),
        _script(session, "kv-moves", "kv_moves"),
    ]


def inputs(session: Session) -> Part:
    """Returns the part that writes the shape and its workload, before all others."""
    return Part("inputs", ("bench.gpu.shapes", "--out", str(session.inputs), *session.shapes))


def configs(session: Session, machine: Machine) -> dict[Path, str]:
    """Returns the configs of the benchmarks by file. With several GPUs each engine has its own."""
    texts = {path.name: path.read_text() for path in CONFIGS.values()}
    if machine.gpus > 1:
        texts = {name: re.sub(r"(?m)^ +base-gpu-id:.*\n", "", text) for name, text in texts.items()}
    return {session.out / "configs" / name: text for name, text in texts.items()}


def _script(session: Session, name: str, module: str, *arguments: str) -> Part:
    return Part(name, (f"bench.gpu.{module}", str(session.out / f"{name}.json"), *arguments))


def _benchmark(session: Session, machine: Machine, kind: str, engines: int) -> Part:
    name = f"{kind}-{engines}"
    own = [
        "--config",
        str(session.out / "configs" / CONFIGS[kind].name),
        "--out",
        str(session.out / name),
    ]
    own += ["--sim", str(SIMS / f"gpu-{kind}.yaml"), "--engines", str(engines)]
    if kind == SHAPES:
        if find_spec("sglang_router") and not os.environ.get(API_KEY):
            own += ["--router"]
        own += ["--set", f"model.path={session.inputs / 'model'}"]
        own += ["--set", f"bench.workload={session.inputs / 'trace.jsonl'}"]
    if kind == SHAPES and machine.fa3:
        own += ["--set", "engines.sglang.attention-backend=fa3"]
    return Part(name, ("bench.full", *own, *session.bench))
