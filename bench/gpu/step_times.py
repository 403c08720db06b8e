"""Measures an engine's forward passes and draws by draft width, batch and context.

`python -m bench.gpu.step_times OUT.json --model M` starts a drafting engine that measures the
widths of its drafts at several contexts instead of one (measuring_server.py), with the attention
backend and CUDA graphs that it would use. The setup `torch_native-float32` needs no GPU.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from seer_sgl.config import FlagValue
from seer_sgl.engine.launch.process import cpu_flags, engine_environment, server_flags
from seer_sgl.errors import EngineStartError
from seer_sgl.link import contract
from seer_sgl.processes.child import OwnedProcess, free_port, log_tail

from .combinations import ON_CPU, REASONER, Setup, engines
from .machine import require_gpu, write_json

PROGRAM = "bench.gpu.step_times"
SERVER = "bench.gpu.measuring_server"
CONTEXTS = "SEER_BENCH_CONTEXTS"  # environment variable of the server: tokens, comma-separated
ROWS = "SEER_BENCH_ROWS"  # environment variable of the server: the JSON file to write
START_S = 900.0  # graphs are captured and kernels compiled before the measurement
DRAFT_TOKENS = 16
KV_TOKENS = 262144


def flags(setup: Setup, model: Path, batch: int, longest: int) -> dict[str, FlagValue]:
    """Returns SGLang's flags of the engine."""
    room = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    own = {
        "model-path": str(model),
        "context-length": min(longest + 2 * DRAFT_TOKENS, room),
        "max-running-requests": batch,
        "max-total-tokens": KV_TOKENS,
        "cuda-graph-max-bs-decode": batch,
        "speculative-algorithm": contract.ALGORITHM,
        "speculative-num-draft-tokens": DRAFT_TOKENS + 1,
        "port": free_port(),
        "nccl-port": free_port(),
    }
    if not list(model.glob("*.safetensors")):  # a shape (bench.gpu.shapes)
        own |= {"load-format": "dummy", "skip-tokenizer-init": True}
    on_cpu = cpu_flags() if setup.backend == ON_CPU else {}
    return {**on_cpu, **engines(setup)["sglang"], **own}


async def measured(
    setup: Setup, options: argparse.Namespace, rows: Path, log: Path
) -> list[dict[str, Any]]:
    """Returns the rows of the engine. Raises EngineStartError if it ends without them."""
    contexts = [int(context) for context in options.contexts.split(",")]
    given = flags(setup, options.model, options.batch, max(contexts))
    command = [sys.executable, "-m", SERVER, *server_flags(given)]
    environment = {CONTEXTS: options.contexts, ROWS: str(rows)}
    process = await OwnedProcess.start(command, log, engine_environment(1) | environment)
    try:
        until = time.monotonic() + START_S
        while (content := read(rows)) is None:
            if process.exit_status is not None or time.monotonic() > until:
                raise EngineStartError(f"no figures; the end of {log}:\n{log_tail(log)}")
            await asyncio.sleep(1)
    finally:
        await process.stop()
    return content


def read(rows: Path) -> list[dict[str, Any]] | None:
    """Returns the rows of a file; None before the server has written it."""
    if not rows.exists():
        return None
    content: list[dict[str, Any]] = json.loads(rows.read_text())
    return content


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a line per context and batch: ms of the least width, then of each width beside it."""
    lines = []
    for context, batch in sorted({(row["context"], row["batch"]) for row in rows}):
        times = {
            row["width"]: row["ms"]
            for row in rows
            if (row["context"], row["batch"]) == (context, batch)
        }
        plain = times[min(times)]
        ratios = ", ".join(f"{width}: x{ms / plain:.2f}" for width, ms in sorted(times.items()))
        lines.append(f"context {context}, batch {batch}: {plain:.2f} ms; {ratios}")
    return "\n".join(lines)


def main() -> None:
    """Writes the figures and prints them as a table; status 1 if the engine does not start."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file; the log goes beside it")
    parser.add_argument("--model", type=Path, default=REASONER / "model", help="model, or shape")
    parser.add_argument("--setup", default="triton-bfloat16")
    parser.add_argument("--contexts", default="64,1024,8192", help="tokens, comma-separated")
    parser.add_argument("--batch", type=int, default=128, help="the largest")
    options = parser.parse_args()
    try:
        setup = Setup.parse(options.setup)
    except ValueError as error:
        parser.error(str(error))
    if setup.backend != ON_CPU:
        require_gpu(PROGRAM)
    written, log = options.out.with_suffix(".rows"), options.out.with_suffix(".log")
    written.unlink(missing_ok=True)
    try:
        rows = asyncio.run(measured(setup, options, written, log))
    except EngineStartError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    facts = {"model": str(options.model), "setup": options.setup}
    write_json(options.out, facts | {"rows": rows})
    written.unlink()
    print(table(rows))


if __name__ == "__main__":
    main()
