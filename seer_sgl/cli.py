"""The command line: the commands of `seer-sgl`, and how their errors end the process."""

import contextlib
import errno
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .console import (
    INTERRUPTED,
    LEVELS,
    WIDE,
    complain,
    flushed_output,
    log_to,
    open_console,
    open_standard_files,
)
from .errors import ConfigError, SeerError

if TYPE_CHECKING:
    from rich.console import Console

    from .config import Config

# Each command imports what it needs by itself, so that `--help` is fast.
logger = logging.getLogger(__name__)
NEXT = "next: your own prompts with --prompts FILE, or from your trainer as in docs/python.md"
F = TypeVar("F", bound=Callable[..., Any])
# Every rollout of a benchmark logs the same warnings.
REPEATED = ("seer_sgl.rollout", "seer_sgl.driver")

PATH = click.Path(path_type=Path)
log_level = click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="The lowest level that is logged to standard error.",
)
set_keys = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any config key."
)


def out_folder(default: str) -> Callable[[F], F]:
    """Returns the option that names the folder for the results."""
    return click.option(
        "--out", type=PATH, default=Path(default), show_default=True, help="Folder for the results."
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="seer-sgl")
def cli() -> None:
    """Divided, context-aware rollout for synchronous RL on SGLang."""


@cli.command()
@click.option("--config", type=PATH, help="YAML config.")
@click.option("--ready", metavar="NAME", help="Instead, one of: cpu, cpu-pool, cpu-seer.")
@click.option("--prompts", type=PATH, help="JSONL; default rollout.prompts.")
@out_folder("out")
@set_keys
@click.option("--overwrite", is_flag=True, help="Replace the samples of an earlier rollout.")
@click.option("--resume", type=PATH, metavar="DIR", help="Continue with DIR's journal.")
@click.option("--extend", is_flag=True, help="With --resume: prompts were added at the end.")
@click.option("--compare", is_flag=True, help="Compare with plain SGLang, afterwards.")
@log_level
def rollout(
    *,
    config: Path | None,
    ready: str | None,
    prompts: Path | None,
    out: Path,
    overrides: tuple[str, ...],
    overwrite: bool,
    resume: Path | None,
    extend: bool,
    compare: bool,
    log_level: str,
) -> None:
    """Roll prompts out on SGLang engines.

    Writes samples.jsonl, report.json and timeline.png into OUT.
    """
    from .event_loop import run

    if prompts is not None:
        overrides = (*overrides, f"rollout.prompts={json.dumps(str(prompts))}")
    console = open_console()
    with log_to(console, log_level):
        settings = _settings(config, ready, overrides)
        if extend and resume is None:
            raise ConfigError("--extend: only with --resume")
        if compare and resume is not None:
            raise ConfigError("--compare: not together with --resume")
        if compare:
            from .benchmark.comparison import roll_out_and_compare

            run(roll_out_and_compare(settings, out, overwrite, console))
        else:
            from .rollout.command import Resume, roll_out

            going_on = None if resume is None else Resume(resume, extend)
            run(roll_out(settings, out, overwrite, console, resume=going_on))
        logger.info("%s", NEXT)


@cli.command()
@click.option("--config", type=PATH, help="YAML config.")
@click.option("--ready", metavar="NAME", help="Instead, one of: cpu, cpu-pool, cpu-seer.")
@click.option("--host", help="Address to listen on; default server.host.")
@click.option("--port", type=int, help="Port; default server.port. 0: a free one.")
@click.option(
    "--log-dir",
    type=PATH,
    default=Path("logs"),
    show_default=True,
    help="Folder for the logs of local engines.",
)
@set_keys
@log_level
def serve(
    *,
    config: Path | None,
    ready: str | None,
    host: str | None,
    port: int | None,
    log_dir: Path,
    overrides: tuple[str, ...],
    log_level: str,
) -> None:
    """Serve a fleet as one SGLang server.

    Speaks SGLang's and OpenAI's HTTP.
    """
    from .event_loop import run
    from .server.command import serve as serve_fleet

    for key, value in (("host", host), ("port", port)):
        if value is not None:
            overrides = (*overrides, f"server.{key}={json.dumps(value)}")
    with log_to(open_console(), log_level):
        run(serve_fleet(_settings(config, ready, overrides), log_dir))


@cli.command()
@click.option("--workload", help="moonlight, qwen2-vl-72b or kimi-k2 (configs/sim/).")
@click.option("--trace", type=PATH, help="As for what-if; with --policy or --sweep.")
@click.option("--policy", help="One policy; the default compares all policies.")
@click.option("--config", type=PATH, help="YAML like configs/sim/.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any of its keys.")
@click.option("--sweep", metavar="KEY=V1,V2,...", help="One key at several values.")
@click.option("--draws", type=int, metavar="N", help="Lengths of seeds 1 to N: means, ranges.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
@click.option("--out", type=PATH, help="Folder for JSON and plots.")
@log_level
def simulate(*, log_level: str, **options: Any) -> None:
    """Predict a rollout without any engine.

    Runs the real scheduler in virtual time.
    """
    from .sim.command import run_simulation
    from .sim.opening import SimRequest

    inputs = ("workload", "trace", "config", "overrides")
    sim_request = SimRequest(**{name: options.pop(name) for name in inputs})
    with log_to(open_console(), log_level), flushed_output():
        run_simulation(sim_request, **options)


@cli.command("what-if")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=PATH)
@click.option("--model", help="qwen2.5-7b, qwen3-8b (default), qwen2.5-72b, or of configs/sim/.")
@click.option("--gpu", help="A100, H100 (default) or H200.")
@click.option("--gpus-per-engine", type=click.IntRange(1, 1024), metavar="N", help="Default 1.")
@click.option("--engines", type=click.IntRange(1, 10_000), metavar="N", help="Default 8.")
@click.option("--price", type=click.FloatRange(0, 1e9), help="Of a GPU for an hour.")
@click.option("--group-size", type=click.IntRange(1), metavar="N", help="If a file has no groups.")
@click.option("--groups", type=click.IntRange(1), metavar="N", help="Only so many, at random.")
@click.option("--engine", multiple=True, metavar="URL", help="Measure servers; one per option.")
@click.option("--replay", is_flag=True, help="Also replay the trace on these servers.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Of a replay.")
@click.option("--tokenizer", metavar="PATH", help="To count tokens, where a file has texts only.")
@click.option(
    "--draws",
    type=click.IntRange(0, 100),
    default=4,
    show_default=True,
    help="If there is one trace.",
)
@click.option("--config", type=PATH, help="YAML with keys of configs/sim/.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any of its keys.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
@click.option("--out", type=PATH, help="Folder for JSON and picture.")
@log_level
def what_if(*, as_json: bool, log_level: str, **options: Any) -> None:
    """Estimate the gain of seer-sgl, from lengths.

    TRACE: a file with the response lengths of a rollout that happened: samples.jsonl, other JSON
    lines, CSV (group,length), or a dump of slime, veRL, NeMo-RL, tpu-inference or inference-perf.
    Several traces are several rollouts; the last is shown. No engine is needed.
    """
    from .event_loop import run
    from .what_if.command import WhatIf, WhatIfRequest

    with log_to(open_console(), log_level):
        request = WhatIfRequest(**options)
        asked = WhatIf(request)
        if request.engine:
            run(asked.measure())
        asked.ask()
        if request.replay:
            run(asked.replay())
        with flushed_output():
            asked.show(_output(), as_json=as_json)


@cli.command()
@click.option("--config", type=PATH, help="YAML; default bench-cpu.yaml.")
@out_folder("out/bench")
@click.option("--workload", help="JSONL samples of an earlier rollout: prompts and lengths.")
@click.option("--engines", multiple=True, metavar="N|[KIND=]URLS", help="Start N, or join URLS.")
@click.option("--arms", help="The arms to run, comma-separated.")
@click.option("--rounds", type=int, help="Rollouts per arm.")
@click.option("--gpu", is_flag=True, help="Use configs/bench-gpu.yaml.")
@set_keys
@log_level
def bench(
    *,
    out: Path,
    log_level: str,
    **options: Any,
) -> None:
    """Compare plain SGLang with seer-sgl.

    All arms, technique by technique, do the same work.
    """
    from .benchmark.command import bench as run_bench
    from .benchmark.config import load_from_options
    from .benchmark.runner import Runner
    from .event_loop import run

    console = open_console(wide=True)
    with log_to(console, log_level, once=REPEATED):
        run(run_bench(Runner(load_from_options(**options), out), console))


@cli.command()
@click.argument("path", metavar="SAMPLES", type=PATH)
@click.option("--engine", required=True, metavar="URL", help="An SGLang server.")
@click.option("--samples", type=click.IntRange(1), default=32, show_default=True, help="At most.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random choice.")
@click.option("--budget", type=click.IntRange(1), metavar="TOKENS", help="Of all calls together.")
@click.option("--batch", type=click.IntRange(2), default=16, show_default=True, help="Calls.")
@click.option(
    "--clip",
    type=click.FloatRange(0, min_open=True),
    default=0.2,
    show_default=True,
    help="Range of importance weights: 1 - CLIP to 1 + CLIP.",
)
@click.option("--flush", is_flag=True, help="Also drop the server's cache before cold passes.")
@click.option("--fail", multiple=True, metavar="NAME=VALUE", help="A limit; exit status 1 above.")
@click.option(
    "--set", "overrides", multiple=True, metavar="NAME=VALUE", help="A sampling parameter."
)
@out_folder("out")
@log_level
def audit(*, out: Path, log_level: str, **options: Any) -> None:
    """Compute samples again on a server, and compare.

    SAMPLES: samples.jsonl, other JSON lines with tokens and log probabilities, or slime's debug
    rollout data. Prints what differs and why, and writes audit.json into OUT.
    """
    from .audit.command import AuditRequest
    from .audit.command import audit as run_audit
    from .event_loop import run

    log = open_console()
    with log_to(log, log_level):
        run(run_audit(AuditRequest.of_options(**options), out, log, _output()))


@cli.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def engine(flags: tuple[str, ...]) -> None:
    """Start stock SGLang with the plugin.

    FLAGS are SGLang's own.
    """
    from .engine.launch.standalone import exec_engine

    exec_engine(list(flags))


@cli.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", required=True, help="As in draft.hub of drivers and engines.")
@click.option("--memory", default="1gb", show_default=True, help="Limit for tokens.")
@log_level
def drafthub(host: str, port: str, memory: str, log_level: str) -> None:
    """Serve the draft hub of a fleet.

    The token is in SEER_SGL_LINK_TOKEN.
    """
    import uvloop

    from .link.hubserver import serve_hub

    with log_to(open_console(), log_level):
        uvloop.run(serve_hub(host, port, memory))


@cli.command()
@click.argument("machine", type=click.Choice(["cpu", "gpu-overrides"]))
def requirements(machine: str) -> None:
    """Print a requirements file for uv.

    cpu: the pinned packages of a machine without a GPU. gpu-overrides: what `uv pip install
    --override` needs on a machine with one.
    """
    from .config.ready import REQUIREMENTS

    click.echo(REQUIREMENTS[machine].read_text(), nl=False)


@cli.command()
def doctor() -> None:
    """Check this machine.

    Prints one line per check, and the command that fixes each failure.
    """
    from rich.console import Console

    from .doctor import examine

    sys.exit(0 if examine(Console(highlight=False)) else 1)


def _output() -> "Console":
    """Returns a console on standard output, WIDE unless it is a terminal."""
    from rich.console import Console

    return Console(highlight=False, width=None if Console().is_terminal else WIDE)


def _settings(config: Path | None, ready: str | None, overrides: tuple[str, ...]) -> "Config":
    """Returns the config of `--config` or `--ready`."""
    from .config import load, load_ready

    if ready is None:
        return load(config, overrides)
    if config is not None:
        raise ConfigError(f"--ready {ready}: not together with --config")
    return load_ready(ready, overrides)


@contextlib.contextmanager
def exiting() -> Iterator[None]:
    """Ends the process if the block fails; every SeerError becomes one line and an exit status."""
    try:
        yield
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except SeerError as error:
        complain(str(error))
        sys.exit(error.exit_status)
    except OSError as error:  # standard output goes to a file
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        complain(str(error.strerror))
        sys.exit(1)
    except (KeyboardInterrupt, click.exceptions.Abort):  # click turns the first into the second
        complain("interrupted")
        sys.exit(INTERRUPTED)


def main() -> None:
    """Runs the command line."""
    open_standard_files()
    with exiting():
        cli.main(standalone_mode=False)
