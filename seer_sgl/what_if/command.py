"""`seer-sgl what-if`: the gain of another order of requests, from lengths alone."""

import itertools
import json
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from seer_sgl.config.addresses import is_url
from seer_sgl.driver.checks import same_server
from seer_sgl.engine.describe import describe
from seer_sgl.engine.session import open_session
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import ConfigError
from seer_sgl.files import explained, make_out_folder, write_whole
from seer_sgl.link.contract import API_KEY
from seer_sgl.report.style import can_draw
from seer_sgl.sim.config import EngineConfig
from seer_sgl.sim.opening import open_trace
from seer_sgl.traces.trace import Trace

from .answer import Question, WhatIfAnswer, answer
from .chosen import chosen_keys, described
from .constants import measured_engine
from .orders import CHUNK
from .page import print_page
from .profiles import DEFAULT_MODEL, measured_profile, profile
from .replay import Replayer, ratios
from .trace_files import assumed_of, read_traces

logger = logging.getLogger(__name__)
KV_BYTES = 100_000.0  # per token of measured servers: only its ratio to the bandwidth matters


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
    groups: int | None = None
    out: Path | None = None
    engine: Sequence[str] = ()
    replay: bool = False
    rounds: int = 3
    config: Path | None = None
    overrides: Sequence[str] = ()


class WhatIf:
    """The steps of the command, in this order: `measure`, `ask`, `replay`, `show`."""

    def __init__(self, request: WhatIfRequest) -> None:
        """Raises ConfigError if a trace cannot be read, or options contradict each other."""
        if request.replay and not request.engine:
            raise ConfigError("--replay: give the servers with --engine URL")
        if request.engine and (request.model or request.gpu):
            raise ConfigError("--engine: measures the engines; leave out --model and --gpu")
        if request.engine and request.engines is not None:
            raise ConfigError("--engines: not together with --engine: the given servers are all")
        self._urls = _urls(request.engine)
        if request.out is not None:
            make_out_folder(request.out)
        if request.price is not None and not math.isfinite(request.price):
            raise ConfigError(f"--price: {request.price} is not a price")
        self._request = request
        self._chosen = chosen_keys(request.config, request.overrides)
        self._traces = read_traces(
            request.traces,
            group_size=request.group_size,
            groups=request.groups,
            tokenizer=request.tokenizer,
        )
        self._measured: EngineConfig | None = None
        self._found: WhatIfAnswer | None = None

    async def measure(self) -> None:
        """Measures the costs of the servers. Raises EngineUnavailable or EngineStartError."""
        logger.info("measuring %d server(s)", len(self._request.engine))
        infos = await self._infos()
        self._measured = await measured_engine(infos, KV_BYTES, _key())

    @property
    def answer(self) -> WhatIfAnswer:
        """What was found so far. Raises RuntimeError before `ask`."""
        if self._found is None:
            raise RuntimeError("nothing was asked yet")
        return self._found

    def ask(self) -> WhatIfAnswer:
        """Simulates everything. Raises ConfigError if a trace cannot be simulated."""
        self._found = answer(self._question(), lambda step: logger.info("simulating: %s", step))
        return self._found

    async def replay(self) -> None:
        """Replays the trace on the servers. Raises ConfigError, EngineError or RolloutError."""
        infos = await self._infos()
        async with open_session(_key()) as session:
            groups, chunk = self._traces[-1].groups, self.answer.chunk_tokens
            replayer = Replayer(infos, session, groups, chunk)
            rounds = replayer.rounds(
                self._request.rounds, lambda step: logger.info("replaying: %s", step)
            )
            rollouts = [rollout async for rollout in rounds]
        self._found = msgspec.structs.replace(
            self.answer,
            replayed=rollouts,
            replayed_ratios=ratios(rollouts, self.answer.orders),
        )

    def show(self, page: Console, *, as_json: bool) -> None:
        """Prints the page, or one JSON object; with `out`, also writes what-if.json and
        what-if.png. Raises RolloutError if a file cannot be written."""
        out = self._request.out
        built = msgspec.to_builtins(self.answer)
        if out is not None:
            with explained(out / "what-if.json"):
                write_whole(out / "what-if.json", _json(built, indent=2).encode() + b"\n")
            if can_draw():
                from .picture import draw

                draw(self.answer, out / "what-if")
        if as_json:
            print(_json(built))
        else:
            print_page(self.answer, page)

    async def _infos(self) -> list[EngineInfo]:
        """Returns the descriptions of the servers. Raises ConfigError if two are one."""
        async with open_session(_key()) as session:
            servers = [
                await describe(session, f"e{number}", url) for number, url in enumerate(self._urls)
            ]
        for (one, *_), (other, *_) in itertools.combinations(servers, 2):
            if same_server(one, other):
                raise ConfigError(f"--engine {other.url}: the same server as {one.url}")
        return [info for ranks in servers for info in ranks]

    def _question(self) -> Question:
        request, last = self._request, self._traces[-1]
        gpus, count = request.gpus_per_engine, request.engines
        if self._measured is None:
            engines = profile(request.model or DEFAULT_MODEL, request.gpu, gpus, count)
        else:
            engines = measured_profile(self._measured, gpus)
        files = [] if request.config is None else [request.config]
        scenarios = [
            open_trace(trace, *files, overrides=request.overrides, engines=engines.tree)
            for trace in self._traces
        ]
        engines = engines._replace(description=described(engines.description, self._chosen))
        chunk = scenarios[-1].config.scheduling.chunk_tokens
        return Question(
            scenarios=scenarios,
            format=last.format,
            profile=engines,
            assumed=[*_assumed(request, self._chosen, last), *assumed_of(self._traces)],
            price=request.price,
            chosen_chunk=chunk if CHUNK in self._chosen else None,
            draws=request.draws,
        )


def _urls(given: Sequence[str]) -> list[str]:
    urls = [url.rstrip("/") for url in given]
    for number, url in enumerate(urls):
        if not is_url(url):
            raise ConfigError(f"--engine {url}: expected http://host:port")
        if url in urls[:number]:
            raise ConfigError(f"--engine {url}: given twice")
    return urls


def _key() -> str | None:
    return os.environ.get(API_KEY)


def _json(content: object, indent: int | None = None) -> str:
    return json.dumps(content, indent=indent, allow_nan=False)


def _assumed(request: WhatIfRequest, chosen: Sequence[str], trace: Trace) -> list[str]:
    sentences = []
    if request.engine:
        sentences.append("The draws are of lengths; the engines were measured once.")
    elif request.model is None:
        sentences.append("Your model: --model, --gpu and --gpus-per-engine say another.")
    if request.engines is None and "engine.count" not in chosen and not request.engine:
        sentences.append("The number of engines: --engines says another.")
    pool = "there is no KV pool" if request.engine else "a KV pool moves KV between engines"
    sentences.append(f"All prompts are there at the start; {pool}.")
    if len(trace.groups) < 2:
        sentences.append("One group is too little for draws to mean anything.")
    return sentences
