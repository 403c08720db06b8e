"""`seer-openrlhf`: OpenRLHF's train_ppo_ray with the engines of a seer-sgl server.

It exits with status 2 for a command line that cannot be used, and with 1 if something it needs is
missing, or if the training fails. OpenRLHF parses its own flags later, and exits with 2 as well.
The last line then has the reason, after Ray and the server have ended.
"""

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from .checks import ServeError, require_server
from .failures import reason
from .flags import FLAGS, SeerFlags, UsageError, publish, read_flags, refusals
from .seams import problems, rebind
from .served import served

MODULE = "openrlhf.cli.train_ppo_ray"
# As in MODULE, which gives Ray these unless Ray runs already.
WORKERS = {
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
}


class TrainingError(RuntimeError):
    """The training has failed; the text is one line."""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a training. Exits as the module says."""
    try:
        flags, others = read_flags(sys.argv[1:] if argv is None else argv)
        if flags.config:
            _require_file(flags.config)
        refused = list(refusals(others, flags.over_sampling))
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
            require_server(flags)
            _train(flags, others)
    except (ServeError, TrainingError) as error:
        _end([str(error)], 1)


def _require_file(config: str) -> None:
    try:
        found = Path(config).is_file()
    except OSError as error:  # no permission, or a name that is too long
        raise UsageError(f"--seer.config: {config}: {error.strerror}") from None
    if not found:
        raise UsageError(f"--seer.config: there is no file {config}")


def _train(flags: SeerFlags, others: Sequence[str]) -> None:
    """Runs OpenRLHF's program. It finds Ray running, and this package in place of parts of it.

    An error is printed with its traceback, which has those of Ray's workers, and then raised as
    TrainingError.
    """
    import ray

    from .front import close_fronts  # it imports OpenRLHF

    publish(flags)
    rebind()
    # Tokens stay out of it, because Ray shows it on its dashboard and writes it to its logs.
    environment = {name: os.environ.get(name, value) for name, value in WORKERS.items()}
    environment[FLAGS] = os.environ[FLAGS]
    sys.argv[1:] = others
    try:
        ray.init(runtime_env={"env_vars": environment})
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    except Exception as error:
        traceback.print_exc()
        raise TrainingError(f"the training failed: {reason(error)}") from None
    finally:
        close_fronts()
        ray.shutdown()


def _end(reasons: Iterable[str], status: int) -> NoReturn:
    for line in reasons:
        print(f"seer-openrlhf: {line}", file=sys.stderr, flush=True)
    sys.exit(status)
