"""A check per program that the pages call: its options, files and config keys exist. Nothing that a
command would do is done."""

import argparse
import importlib.util
import runpy
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bench.full import __main__ as full
from bench.gpu import session
from bench.gpu.parts import Machine, Session, parts
from seer_sgl import load_ready
from seer_sgl.benchmark.config import load_from_options
from seer_sgl.cli import cli
from seer_sgl.config import load
from seer_sgl.sim.opening import SimRequest
from seer_sgl.sim.source import load_settings
from seer_sgl.sim.sweep import parse_sweep
from seer_sgl.sim.variants import check_variant
from tools.docs.pages import ROOT

Arguments = Sequence[str]


class Parsed(Exception):
    """The arguments of a script are valid; the script goes no further."""


def seer_sgl(arguments: Arguments) -> None:
    """Checks `seer-sgl COMMAND ...`. A command without values is a name in a sentence."""
    name, *rest = arguments
    command = cli.commands[name]
    if name == "engine":
        return  # its flags are SGLang's
    if all(word.startswith("-") for word in rest):
        known = {option for each in command.params for option in each.opts}
        assert {*rest} <= {*known, "--help"}
        return
    options = command.make_context(name, list(rest)).params
    if name in COMMANDS:
        COMMANDS[name](**options)


def _rollout(config: Path | None, ready: str | None, overrides: Arguments, **_: Any) -> None:
    if ready is None:
        load(config, overrides)
    else:
        load_ready(ready, overrides)


def _simulate(policy: str | None, sweep: str | None, **options: Any) -> None:
    inputs = ("workload", "trace", "config", "overrides")
    SimRequest(**{key: options[key] for key in inputs}).open()
    if policy is not None:
        check_variant(policy)
    if sweep is not None:
        parse_sweep(sweep)


def _bench(out: Path, log_level: str, **options: Any) -> None:
    load_from_options(**options)


def _drafthub(memory: str, **_: Any) -> None:
    load_ready("cpu-seer", [f"draft.memory={memory}"])


COMMANDS: dict[str, Callable[..., None]] = {
    "rollout": _rollout,
    "simulate": _simulate,
    "bench": _bench,
    "drafthub": _drafthub,
}


def make(arguments: Arguments) -> None:
    """Checks `make TARGET NAME=VALUE`: the Makefile has them."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in arguments:
        name, is_variable, _ = word.partition("=")
        assert f"\n{name} ?=" in makefile if is_variable else f"\n{name}:" in makefile, word


def python(arguments: Arguments) -> None:
    """Checks `python -m MODULE ...`: parses the arguments as the module would."""
    option, module, *rest = arguments
    assert option == "-m"
    if module == "pytest":
        pytest_files(rest)
        return
    assert importlib.util.find_spec(module) is not None
    if module == "bench.full":
        options, rest = full.arguments().parse_known_args(rest)
        assert options.sim is None or load_settings(options.sim)
        seer_sgl(["bench", *rest])
    elif rest:
        _parse_only(module, rest)


def _parse_only(module: str, arguments: Arguments) -> None:
    parser = argparse.ArgumentParser
    parse, parse_known = parser.parse_args, parser.parse_known_args

    def parse_only(*options: Any) -> NoReturn:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(parser, "parse_known_args", parse_known)  # `parse` calls it
            parse(*options)
        raise Parsed

    def parse_known_only(*options: Any) -> NoReturn:
        parse_known(*options)
        raise Parsed

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # another test has imported the module
        patch.setattr(parser, "parse_args", parse_only)
        patch.setattr(parser, "parse_known_args", parse_known_only)
        patch.setattr(sys, "argv", [module, *arguments])
        with pytest.raises((Parsed, SystemExit)) as ended:
            runpy.run_module(module, run_name="__main__")
    assert not isinstance(ended.value, SystemExit) or ended.value.code == 0  # --help


def pytest_files(arguments: Arguments) -> None:
    """Checks `pytest FILE`, `pytest FILE::test`."""
    for name in (word for word in arguments if ".py" in word):
        file, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8")


def gpu_kit(arguments: Arguments) -> None:
    """Checks `bench/gpu/run.sh ...`: its options are those of a session and of `seer-sgl bench`."""
    options, rest = session.arguments().parse_known_args(["OUT", *arguments])
    known = [part.name for part in parts(Session(options.out), Machine(fa3=True))]
    assert set(filter(None, options.parts.split(","))) <= set(known)
    if rest:
        python(["-m", "bench.full", "--gpu", *rest])


# Of other programs, the pages are read and not checked.
CHECKS: dict[str, Callable[[Arguments], None]] = {
    "seer-sgl": seer_sgl,
    "make": make,
    "python": python,
    ".venv/bin/python": python,
    "pytest": pytest_files,
    "bench/gpu/run.sh": gpu_kit,
}
