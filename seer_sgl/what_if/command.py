"""`seer-sgl what-if`: what another order of requests would bring, from lengths alone."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from seer_sgl.errors import ConfigError
from seer_sgl.files import explained
from seer_sgl.report.style import can_draw
from seer_sgl.sim.opening import open_trace
from seer_sgl.traces.reading import read_trace
from seer_sgl.traces.rl_lines import Count
from seer_sgl.traces.trace import Trace

from .answer import Question, answer
from .orders import CHUNK
from .page import print_page
from .profiles import DEFAULT_MODEL, profile

logger = logging.getLogger(__name__)
SOURCE = "TRACE"


class WhatIfRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command, by their names there."""

    traces: Sequence[Path]
    model: str | None = None
    gpu: str | None = None
    gpus_per_engine: int | None = None
    engines: int | None = None
    price: float | None = None
    group_size: int | None = None
    tokenizer: str | None = None
    draws: int = 4
    config: Path | None = None
    overrides: Sequence[str] = ()


def what_if(request: WhatIfRequest, *, as_json: bool, out: Path | None, page: Console) -> None:
    """Prints the page, or one JSON object; with `out`, also writes what-if.json and what-if.png.

    Raises ConfigError if a trace cannot be read or simulated.
    """
    if out is not None:
        _make_folder(out)
    found = answer(_question(request), lambda step: logger.info("simulating: %s", step))
    built = msgspec.to_builtins(found)
    if out is not None:
        with explained(out / "what-if.json"):
            (out / "what-if.json").write_text(json.dumps(built, indent=2) + "\n")
        if can_draw():
            from .picture import draw

            draw(found, out / "what-if")
    if as_json:
        print(json.dumps(built))
    else:
        print_page(found, page)


def _question(request: WhatIfRequest) -> Question:
    count = None if request.tokenizer is None else _counter(request.tokenizer)
    traces = [
        read_trace(path, source=SOURCE, group_size=request.group_size, count=count)
        for each in request.traces
        for path in _files(each)
    ]
    engines = profile(
        request.model or DEFAULT_MODEL, request.gpu, request.gpus_per_engine, request.engines
    )
    files = [] if request.config is None else [request.config]
    scenarios = [
        open_trace(trace, *files, overrides=request.overrides, engines=engines.tree)
        for trace in traces
    ]
    config = scenarios[-1].config
    chosen = any(override.startswith(f"{CHUNK}=") for override in request.overrides)
    return Question(
        scenarios=scenarios,
        format=traces[-1].format,
        profile=engines,
        assumed=[*_assumed(request, traces[-1]), *traces[-1].assumed],
        price=request.price,
        chosen_chunk=config.scheduling.chunk_tokens if chosen else None,
        draws=request.draws,
    )


def _counter(tokenizer: str) -> Count:
    """Returns the function that counts the tokens of a text."""
    from seer_sgl.driver.load_tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    if loaded is None:
        raise ConfigError(f"--tokenizer {tokenizer}: no tokenizer in this folder")
    return lambda text: len(loaded.encode(text))


def _assumed(request: WhatIfRequest, trace: Trace) -> list[str]:
    sentences = []
    if request.model is None and request.config is None:
        sentences.append("Your model: --model, --gpu and --gpus-per-engine say another.")
    if request.engines is None and request.config is None:
        sentences.append("The number of engines: --engines says another.")
    sentences.append("All prompts are there at the start; a KV pool moves KV between engines.")
    if len(trace.groups) < 2:
        sentences.append("One group is too little for draws to mean anything.")
    return sentences


def _files(path: Path) -> list[Path]:
    """Returns a file, or the JSON lines of a folder by number: veRL writes one per step."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.jsonl"), key=lambda each: (len(each.stem), each.stem))
    if not files:
        raise ConfigError(f"{SOURCE}: {path}: no file *.jsonl in this folder")
    return files


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error
