"""The table of what is rebound, against other versions and against the installed OpenRLHF."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from seer_openrlhf import seams
from seer_openrlhf.seams import MADE_FOR, SEAMS, Seam, parameters_of, problems, rebind

TESTS = Path(__file__).parent


class Host:
    """A class of the host."""

    def sync(self, backend: str, *, again: bool = False) -> None:
        """A method of the host."""


def make_engines(count: int, seed: int = 0) -> list[int]:
    """A function of the host."""
    return [seed] * count


class Ours(Host):
    """What replaces Host."""


SEAM = Seam(
    module="host_of_test", name="make_engines", parameters="(count, seed=0)", purpose="engines"
)
METHOD = Seam(
    module="host_of_test", name="Host.sync", parameters="(backend, *, again=False)", purpose="sync"
)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A host in the place of OpenRLHF, which fits the table."""
    module: Any = ModuleType("host_of_test")
    module.make_engines, module.Host = make_engines, Host
    monkeypatch.setitem(sys.modules, "host_of_test", module)
    ours: Any = ModuleType("ours_of_test")
    ours.Ours = Ours
    monkeypatch.setitem(sys.modules, "ours_of_test", ours)
    monkeypatch.setattr(seams, "version", lambda _: MADE_FOR)
    monkeypatch.setattr(seams, "SEAMS", (SEAM, METHOD))
    found: ModuleType = module
    return found


def test_an_equal_host_has_no_problems(host: ModuleType) -> None:
    assert list(problems()) == []


def test_a_changed_signature_is_named(host: ModuleType) -> None:
    def changed(count: int, device: str, seed: int = 0) -> None:
        """Another version of make_engines."""

    vars(host)["make_engines"] = changed
    assert list(problems()) == [
        "host_of_test.make_engines takes (count, device, seed=0), and not (count, seed=0)"
    ]


def test_every_missing_name_is_named_with_its_purpose(host: ModuleType) -> None:
    del vars(host)["make_engines"], vars(host)["Host"]
    assert list(problems()) == [
        "host_of_test.make_engines is missing (engines)",
        "host_of_test.Host.sync is missing (sync)",
    ]


def test_another_version_is_the_only_line(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    vars(host).clear()
    monkeypatch.setattr(seams, "version", lambda _: "0.12.0")
    assert list(problems()) == [
        f"openrlhf 0.12.0 is installed; seer-openrlhf is made for {MADE_FOR}"
    ]


def test_a_host_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(seams, "version", missing)
    assert list(problems()) == [f"openrlhf is not installed; seer-openrlhf is made for {MADE_FOR}"]


def test_a_module_that_cannot_be_imported_is_one_line(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    seam = Seam(module="no_such_module_here", name="x", parameters="()", purpose="none")
    monkeypatch.setattr(seams, "SEAMS", (seam, seam))
    (line,) = problems()
    assert line.startswith("no_such_module_here cannot be imported: ModuleNotFoundError: ")
    assert "\n" not in line


def test_rebinding_puts_replacements_in_place_and_leaves_the_rest(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    seam = Seam(
        module="host_of_test",
        name="Host",
        parameters="()",
        purpose="host",
        replacement="ours_of_test:Ours",
    )
    monkeypatch.setattr(seams, "SEAMS", (SEAM, METHOD, seam))
    rebind()
    assert (vars(host)["Host"], vars(host)["make_engines"]) == (Ours, make_engines)


def test_parameters_have_no_annotations_and_nothing_of_rays() -> None:
    def method(self: object, a: int, *b: int, c: str = "", _ray_trace_ctx: None = None) -> None:
        """A method of a Ray actor."""

    assert parameters_of(method) == "(a, *b, c='')"


def test_only_names_of_modules_are_rebound() -> None:
    rebound = {(seam.module, seam.name) for seam in SEAMS if seam.replacement}
    assert len(rebound) == 4
    assert not [name for _, name in rebound if "." in name]


CHECK = """
import inspect, sys
sys.path.append(sys.argv[1])  # last: stand-ins are used only where the real packages are missing
from seer_openrlhf.seams import problems
for problem in problems():
    sys.exit(f"differs: {problem}")
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.trainer.ppo_trainer_async import GenerateSamplesActor
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
def reads(actor, method, name):
    function = inspect.unwrap(getattr(actor.__ray_metadata__.modified_class, method))
    assert name in function.__code__.co_names, (actor, method, name)
reads(PPOTrainer, "__init__", "SamplesGenerator")
reads(GenerateSamplesActor, "__init__", "SamplesGenerator")
reads(PolicyModelActor, "init_model_from_pretrained", "ActorPPOTrainer")
"""


def test_the_installed_openrlhf_fits_the_table_and_reads_the_rebound_names(tmp_path: Path) -> None:
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(TESTS.parent)}
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(TESTS / "stand_ins")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
