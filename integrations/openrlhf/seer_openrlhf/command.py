"""`seer-openrlhf`: OpenRLHF's train_ppo_ray with the engines of a seer-sgl server.

It exits with status 2 for a command line that cannot be used, and with 1 if something it needs is
missing or has ended. OpenRLHF parses its own flags later, and exits with 2 as well.
"""

import contextlib
import importlib
import os
import runpy
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

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
# Test-only. `module:function` names a function that makes OpenRLHF run without CUDA. It runs here
# and in every Ray worker, and its module has Ray's logical resources as RESOURCES.
TEST_HOOK = "SEER_OPENRLHF_TEST_HOOK"


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
    for_tests = _run_test_hook()
    found = list(problems())
    if found:
        _end(found, 1)
    try:
        with contextlib.ExitStack() as stack:
            if flags.config:
                flags = replace(flags, url=stack.enter_context(served(flags)))
            else:
                require_health(flags.url)
            _train(flags, others, for_tests)
    except ServeError as error:
        _end([str(error)], 1)


@dataclass(frozen=True)
class _ForTests:
    """Test-only: additions to Ray's runtime environment, and options of ray.init."""

    runtime: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def _train(flags: SeerFlags, others: Sequence[str], for_tests: _ForTests) -> None:
    """Runs OpenRLHF's program. It finds Ray running, and this package in place of parts of it."""
    import ray

    publish(flags)
    rebind()
    # Tokens stay out of it, because Ray shows it on its dashboard and writes it to its logs.
    environment = {name: os.environ.get(name, value) for name, value in WORKERS.items()}
    environment[FLAGS] = os.environ[FLAGS]
    ray.init(runtime_env={"env_vars": environment, **for_tests.runtime}, **for_tests.options)
    sys.argv[1:] = others
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


def _run_test_hook() -> _ForTests:
    """Test-only: runs the function that TEST_HOOK names, if it is set."""
    name = os.environ.get(TEST_HOOK)
    if name is None:
        return _ForTests()
    module_name, _, function = name.partition(":")
    module = importlib.import_module(module_name)
    getattr(module, function)()
    hook = {"worker_process_setup_hook": f"{module_name}.{function}"}
    return _ForTests(hook, module.RESOURCES)


def _end(reasons: Iterable[str], status: int) -> NoReturn:
    for reason in reasons:
        print(f"seer-openrlhf: {reason}", file=sys.stderr, flush=True)
    sys.exit(status)
