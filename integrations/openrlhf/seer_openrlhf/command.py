"""`seer-openrlhf`: OpenRLHF's train_ppo_ray with the engines of a seer-sgl server.

It exits with status 2 for a command line that cannot be used, and with 1 if something it needs is
missing or has ended. OpenRLHF parses its own flags later, and exits with 2 as well.
"""

import contextlib
import os
import runpy
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from .flags import FLAGS, SeerFlags, UsageError, publish, read_flags, refusals
from .seams import problems, rebind
from .served import ServeError, require_health, served

MODULE = "openrlhf.cli.train_ppo_ray"
# As in MODULE, which gives Ray these unless Ray runs already.
WORKERS = {
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a training. Exits as the module says."""
    try:
        flags, others = read_flags(sys.argv[1:] if argv is None else argv)
        if flags.config and not Path(flags.config).is_file():
            raise UsageError(f"--seer.config: there is no file {flags.config}")
        refused = list(refusals(others))
    except UsageError as error:
        refused = [str(error)]
    if refused:
        _end(refused, 2)
    found = list(problems())
    if found:
        _end(found, 1)
    try:
        with contextlib.ExitStack() as stack:
            if flags.config:
                flags = replace(flags, url=stack.enter_context(served(flags)))
            else:
                require_health(flags.url)
            _train(flags, others)
    except ServeError as error:
        _end([str(error)], 1)


def _train(flags: SeerFlags, others: Sequence[str]) -> None:
    """Runs OpenRLHF's program. It finds Ray running, and this package in place of parts of it."""
    import ray

    publish(flags)
    rebind()
    # Tokens stay out of it, because Ray shows it on its dashboard and writes it to its logs.
    environment = {name: os.environ.get(name, value) for name, value in WORKERS.items()}
    environment[FLAGS] = os.environ[FLAGS]
    ray.init(runtime_env={"env_vars": environment})
    sys.argv[1:] = others
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


def _end(reasons: Iterable[str], status: int) -> NoReturn:
    for reason in reasons:
        print(f"seer-openrlhf: {reason}", file=sys.stderr, flush=True)
    sys.exit(status)
