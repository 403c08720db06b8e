"""The flags of `seer-openrlhf`, and the flags of OpenRLHF that it refuses.

Abbreviations are handled here. Flags `--seer.*` have none. OpenRLHF's parser takes any unambiguous
prefix of a flag, so `refusals` reads the command line with a parser of the same kind that has only
the flags in question. A prefix of such a flag then counts as the flag itself. If OpenRLHF has other
flags with this prefix, its own parser ends as well, because the prefix is ambiguous.
"""

import argparse
import json
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit

FLAGS = "SEER_OPENRLHF"  # environment variable: the flags as JSON, for Ray's workers

MOST_OVER_SAMPLING = 16  # more is a mistake: the surplus of every batch is aborted

APART = "the engines are processes of the server, on GPUs of their own"
WEIGHTS = "weights go to the engines through the server"
TEXT_ONLY = "prompts with images are not supported"

REFUSED_IF_SET = {
    "--train.colocate_all": f"{APART}; CUDA IPC cannot reach them",
    "--vllm.enable_sleep": APART,
    "--vllm.sync_with_ray": WEIGHTS,
    "--actor.freeze_visual_encoder": TEXT_ONLY,
}
REFUSED_ABOVE_ZERO = {
    "--ds.lora.rank": "the engines take whole weights, and LoRA trains adapters",
    "--data.max_images_per_prompt": TEXT_ONLY,
}
FILTERING = "--algo.dynamic_filtering_enable"
ENGINES = "--vllm.num_engines"  # OpenRLHF generates without engines if it is 0 or missing
MOST_SECONDS = 1800  # that a call of the server's control plane may take


class UsageError(ValueError):
    """The command line cannot be used; the text is one line that names the flag and the reason."""


@dataclass(frozen=True, kw_only=True)
class SeerFlags:
    """The values of the flags `--seer.*`; OPTIONS has their meanings.

    In workers `url` is always set: with `config` it is that of the server that was started.
    """

    url: str = ""
    config: str = ""
    command: str = "seer-sgl"
    token_env: str = "SEER_SGL_SERVER_KEY"
    admin_token_env: str = "SEER_SGL_ADMIN_KEY"
    timeout_s: float = MOST_SECONDS
    wait_s: float = 900.0
    bucket_mb: int = 512
    over_sampling: float = 1.0
    sync: str = "distributed"
    sync_dir: str = ""
    check: str = "on"


def read_flags(argv: Sequence[str]) -> tuple[SeerFlags, list[str]]:
    """Returns the flags `--seer.*`, and the other arguments, which are OpenRLHF's.

    Prints a help text and exits for `--help`. Raises UsageError.
    """
    known, others = _parser().parse_known_args(argv)
    for argument in others:
        if argument.startswith("--seer"):
            raise UsageError(f"{argument.partition('=')[0]}: there is no such flag (see --help)")
    given = vars(known)
    flags = SeerFlags(**given)
    for problem in _problems(flags, given):
        raise UsageError(problem)
    return flags, others


def refusals(argv: Sequence[str], over_sampling: float = 1.0) -> Iterator[str]:
    """Yields one line for each of OpenRLHF's flags that cannot work with seer-sgl's engines.

    It yields one as well for an `over_sampling` (the flag of ours) that has no use without
    filtering. Raises UsageError for a value that OpenRLHF's own parser would not take either.
    """
    parser = _Parser(add_help=False)
    for flag in (*REFUSED_IF_SET, FILTERING):
        parser.add_argument(flag, dest=flag, action="store_true")
    for flag in (*REFUSED_ABOVE_ZERO, ENGINES):
        parser.add_argument(flag, dest=flag, type=int, default=0)
    values = vars(parser.parse_known_args(argv)[0])
    for flag, reason in (REFUSED_IF_SET | REFUSED_ABOVE_ZERO).items():
        if values[flag] > 0:
            yield f"{flag}: {reason}"
    if over_sampling > 1 and not values[FILTERING]:
        yield f"--seer.over_sampling: is for {FILTERING}; without it every prompt counts"
    if values[ENGINES] < 1:
        yield f"{ENGINES}: must be 1 or more; the server decides how many engines there are"


def publish(flags: SeerFlags) -> None:
    """Makes `flags` what `current_flags` returns, here and in child processes."""
    os.environ[FLAGS] = json.dumps(asdict(flags))


def current_flags() -> SeerFlags:
    """Returns the flags of the run. Raises RuntimeError in a process outside of a run."""
    text = os.environ.get(FLAGS)
    if text is None:
        raise RuntimeError(f"{FLAGS} is not set: start the training with seer-openrlhf")
    return SeerFlags(**json.loads(text))


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageError."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))


def _parser() -> _Parser:
    """Returns the parser of `--seer.*`. Flags that are not given are missing in its result."""
    parser = _Parser(
        prog="seer-openrlhf",
        usage="%(prog)s (--seer.url URL | --seer.config FILE) [--seer.*] [flags of OpenRLHF]",
        description="OpenRLHF's train_ppo_ray with the engines of a seer-sgl server.",
        epilog="All other flags are those of python -m openrlhf.cli.train_ppo_ray.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for name, options in OPTIONS.items():
        parser.add_argument(f"--seer.{name}", dest=name, **options)
    return parser


def _number(allowed: Callable[[float], bool], described: str) -> Callable[[str], float]:
    """Returns the type of a flag whose value is a number in a range. described: of the range."""

    def parsed(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan  # in no range
        if not allowed(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {described}")
        return value

    return parsed


def _megabytes(text: str) -> int:
    whole = _number(
        lambda value: 1 <= value < math.inf and value.is_integer(), "a whole number from 1"
    )
    return int(whole(text))


OPTIONS: Mapping[str, dict[str, Any]] = {
    "url": {"metavar": "URL", "help": "a running `seer-sgl serve`, as http://host:port"},
    "config": {
        "metavar": "FILE",
        "help": "instead: the config of a `seer-sgl serve` to start on this machine",
    },
    "command": {
        "metavar": "COMMAND",
        "help": "with --seer.config: how to start seer-sgl, which is in an environment of its own; "
        f"default {SeerFlags.command}",
    },
    "token_env": {
        "metavar": "NAME",
        "help": f"environment variable with the server's token; default {SeerFlags.token_env}",
    },
    "admin_token_env": {
        "metavar": "NAME",
        "help": "environment variable with the token of its control plane; "
        f"default {SeerFlags.admin_token_env}",
    },
    "timeout_s": {
        "metavar": "SECONDS",
        "type": _number(
            lambda value: 0 < value <= MOST_SECONDS, f"above 0 and at most {MOST_SECONDS}"
        ),
        "help": "longest silence of the server or an engine; default, and at most, "
        f"{SeerFlags.timeout_s:g}",
    },
    "wait_s": {
        "metavar": "SECONDS",
        "type": _number(lambda value: 0 <= value < math.inf, "a number from 0"),
        "help": "how long a server that has ended may take to be back, which --seer.config starts "
        f"again; 0: the training ends at once; default {SeerFlags.wait_s:g}",
    },
    "bucket_mb": {
        "metavar": "MB",
        "type": _megabytes,
        "help": f"size of the buckets of a weight update; default {SeerFlags.bucket_mb}",
    },
    "over_sampling": {
        "metavar": "FACTOR",
        "type": _number(
            lambda value: 1 <= value <= MOST_OVER_SAMPLING,
            f"a number from 1 to {MOST_OVER_SAMPLING}",
        ),
        "help": f"with {FILTERING}: prompts in progress from the start, as a multiple of a "
        f"batch's; default {SeerFlags.over_sampling:g}",
    },
    "sync": {
        "choices": ("distributed", "disk"),
        "help": "how weights reach the engines: a process group, or a folder that all see; "
        f"default {SeerFlags.sync}",
    },
    "sync_dir": {"metavar": "FOLDER", "help": "with --seer.sync disk: that folder"},
    "check": {
        "choices": ("on", "off"),
        "help": "compare the engines' weights with the trainer's after each update; "
        f"default {SeerFlags.check}",
    },
}


def _problems(flags: SeerFlags, given: Mapping[str, object]) -> Iterator[str]:
    """Yields what is wrong with the flags together. `given`: by their names, those in argv."""
    if bool(flags.url) == bool(flags.config):
        yield "--seer.url, --seer.config: give one of the two"
    if flags.url and not _is_url(flags.url):
        yield "--seer.url: is not of the form http://host:port"
    if "command" in given and not flags.config:
        yield "--seer.command: is for --seer.config"
    if flags.sync == "disk" and not flags.sync_dir:
        yield "--seer.sync_dir: is missing; --seer.sync disk needs a folder that all engines see"
    if flags.sync_dir and flags.sync != "disk":
        yield "--seer.sync_dir: is for --seer.sync disk"
    if not _is_command(flags.command):
        yield "--seer.command: is not a command line (a quote may be open)"
    for name in ("token_env", "admin_token_env"):
        # The value is not printed: it may be a token that was given instead of a name.
        if name in given and str(given[name]) not in os.environ:
            yield f"--seer.{name}: is not the name of a variable of the environment"


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # a port that is not a number
        return False
    server = f"{parts.scheme}://{parts.netloc}"
    plain = parts.username is None and text.rstrip("/") == server
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain and port != 0


def _is_command(text: str) -> bool:
    try:
        return bool(shlex.split(text))
    except ValueError:
        return False
