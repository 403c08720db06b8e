"""The doctor: one line per check, each failure with the command that fixes it, an exit status."""

import io
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from seer_sgl import doctor
from seer_sgl.doctor import Check, Verdict
from seer_sgl.kvpool import packages
from seer_sgl.processes import loopback

ROOT = Path(__file__).resolve().parents[1]
CPU, CUDA12, CUDA13 = (
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
)


def examined(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> tuple[bool, list[str]]:
    monkeypatch.setattr(doctor, "checks", lambda: iter(checks))
    output = io.StringIO()
    healthy = doctor.examine(Console(file=output, width=40))
    return healthy, output.getvalue().splitlines()


def test_a_line_a_check_and_only_missing_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = Check("python", Verdict.OK, "3.11 at a path longer than the terminal is wide")
    wish = Check("mooncake", Verdict.OPTIONAL, "not installed", "pip install m")
    need = Check("torch", Verdict.MISSING, "not installed", "make venv")
    healthy, lines = examined(monkeypatch, fine, wish)
    assert healthy
    assert len(lines) == 2
    assert lines[1] == "optional mooncake  not installed; fix: pip install m"
    healthy, lines = examined(monkeypatch, fine, need, wish)
    assert not healthy
    assert lines[1] == "missing  torch     not installed; fix: make venv"


def test_what_is_not_installed_is_named_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "version", lambda _: None)
    for check in (doctor.check_torch(), doctor.check_sglang()):
        assert (check.verdict, check.found) == (Verdict.MISSING, "not installed")
        assert check.fix
    assert doctor.check_mooncake().verdict is Verdict.OPTIONAL


def test_an_sglang_that_is_not_tested_is_named_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for version in doctor.SGLANG_TESTED:
        monkeypatch.setattr(packages, "version", lambda _, it=version: it)
        assert doctor.check_sglang().verdict is Verdict.OK
    monkeypatch.setattr(packages, "version", lambda _: "0.4.0")
    check = doctor.check_sglang()
    assert check.verdict is Verdict.OPTIONAL
    assert check.found.startswith("0.4.0, not tested with: 0.5.")
    assert check.fix


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "gpu_visible", lambda: True)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Places the package in an environment without the files of a checkout."""
    monkeypatch.setattr(doctor, "CHECKOUT", tmp_path)


def test_in_a_checkout_make_installs() -> None:
    assert doctor.install_command() == "make venv"


@pytest.mark.usefixtures("gpu", "outside")
def test_an_installed_user_with_a_gpu_gets_uv_with_the_override(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    bootstrap, _, command = doctor.install_command().partition(" && ")
    assert bootstrap == "pip install uv"
    assert command.startswith(f"uv pip install --python {sys.executable} --override /")
    assert command.endswith("/ready/requirements-gpu-overrides.txt 'seer-sgl[sglang]'")


@pytest.mark.usefixtures("outside")
def test_an_installed_user_without_a_gpu_gets_the_pinned_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "gpu_visible", lambda: False)
    monkeypatch.setattr(packages, "version", lambda _: None)
    command = doctor.check_sglang().fix
    assert command.startswith("pip install torch==2.13.0 && ")
    assert "seer-sgl requirements cpu | uv pip install" in command
    assert command.endswith("--no-deps -r -")
    assert "make" not in command


def test_doctor_and_the_package_name_the_same_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    cuda13 = f"{CUDA13}=={packages.VERSION}"
    extra = project["project"]["optional-dependencies"]["sglang"]
    assert extra[:2] == [f"sglang=={doctor.SGLANG_VERSION}", cuda13]
    assert packages.fitting(doctor.SGLANG_CUDA) == CUDA13
    pinned = (ROOT / "requirements-cpu.txt").read_text()
    assert f"{CPU}=={packages.VERSION}\n" in pinned
    assert f"sglang=={doctor.SGLANG_VERSION}\n" in pinned
    assert doctor.TORCH in (ROOT / "Makefile").read_text()


def test_without_a_gpu_mooncake_needs_no_cuda_whatever_torch_is_built_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(cuda="13.0")))
    for gpu, cuda in ((False, None), (True, 13)):
        monkeypatch.setattr(doctor, "gpu_visible", lambda gpu=gpu: gpu)
        assert doctor.cuda_version() == cuda


@pytest.mark.parametrize(
    ("there", "cuda", "found", "fix"),
    [
        ([], 13, "not installed", f"pip install {CUDA13}=="),
        ([], 12, "not installed", f"pip install {CUDA12}=="),
        ([], None, "not installed", f"pip install {CPU}=="),
        ([], 14, "not installed", f"pip install {CPU}=="),  # Mooncake is not built for it
        ([CUDA13], 13, f"{CUDA13} 1", ""),
        ([CPU], None, f"{CPU} 1", ""),
        ([CPU], 14, f"{CPU} 1", ""),
        ([CUDA12], 13, "built for CUDA 12, torch for CUDA 13", f" && pip install {CUDA13}=="),
        ([CUDA13], 12, "built for CUDA 13, torch for CUDA 12", f" && pip install {CUDA12}=="),
        ([CPU], 13, "built for no CUDA, torch for CUDA 13", f" && pip install {CUDA13}=="),
        ([CUDA13], None, "built for CUDA 13, torch for no CUDA", f" && pip install {CPU}=="),
        ([CUDA12, CUDA13], 13, "2 packages installed over", f" && pip install {CUDA13}=="),
    ],
)
def test_the_mooncake_that_does_not_fit_torch_is_named_with_the_one_that_does(
    monkeypatch: pytest.MonkeyPatch, there: list[str], cuda: int | None, found: str, fix: str
) -> None:
    monkeypatch.setattr(packages, "version", lambda name: "1" if name in there else None)
    monkeypatch.setattr(packages, "load_store", lambda: None)
    monkeypatch.setattr(doctor, "cuda_version", lambda: cuda)
    check = doctor.check_mooncake()
    assert found in check.found
    assert fix in check.fix
    assert (check.verdict is Verdict.OK) == (check.fix == "") == (fix == "")
    removed = check.fix.partition(" && ")[0].removeprefix("pip uninstall --yes ").split()
    assert sorted(removed) == sorted(there) or not (there and fix)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("library", "fix"),
    [
        ("libmlx5.so.1", "sudo apt-get install libibverbs1 ibverbs-providers"),
        ("libibverbs.so.1", "sudo apt-get install libibverbs1 ibverbs-providers"),
        ("libcudart.so.13", f"pip uninstall --yes {CUDA13} && pip install {CUDA13}=="),
    ],
)
def test_a_library_that_mooncake_lacks_is_mended_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, library: str, fix: str
) -> None:
    def fails() -> None:
        raise ImportError(f"{library}: cannot open shared object file")

    monkeypatch.setattr(packages, "version", lambda name: "1" if name == CUDA13 else None)
    monkeypatch.setattr(packages, "load_store", fails)
    monkeypatch.setattr(doctor, "cuda_version", lambda: 13)
    check = doctor.check_mooncake()
    assert check.verdict is Verdict.OPTIONAL
    assert check.found.startswith(f"{CUDA13} 1 cannot be loaded: {library}")
    assert check.fix.startswith(fix)


def test_too_little_memory_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ENGINE_MEMORY_GB", 10_000.0)
    assert doctor.check_memory().verdict is Verdict.MISSING


def test_ports_that_are_open_to_other_machines_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "gpu_visible", lambda: False)
    assert doctor.check_ports().found == "a local fleet listens on loopback only"
    monkeypatch.setattr(doctor, "gpu_visible", lambda: True)
    assert "NCCL" in doctor.check_ports().found
    monkeypatch.setattr(loopback, "refusal", lambda: "too old")
    check = doctor.check_ports()
    assert (check.verdict, check.found) == (
        Verdict.OPTIONAL,
        "no Mooncake in a local fleet: too old",
    )
    assert "kv_pool.backend: file" in check.fix


@pytest.mark.process
@pytest.mark.parametrize(
    ("probe", "found"),
    [
        ("print('hooks:', 3, 'missing:', 'off:')", "loaded by SGLang, 3 hooks in place"),
        (
            "print('hooks:', 3, 'missing:', 'off:', 'pool', 'drafts')",
            "loaded by SGLang, 3 hooks in place; this SGLang lacks what pool, drafts need",
        ),
        ("print('hooks:', 0, 'missing:')", "SGLang does not find it"),
        ("print('hooks:', 3, 'missing:', 'sglang.x', 'off:')", "cannot hook sglang.x"),
        ("raise ImportError('no such thing')", "SGLang does not load: ImportError: no such thing"),
    ],
)
def test_the_plugin_is_tried_not_assumed(
    monkeypatch: pytest.MonkeyPatch, probe: str, found: str
) -> None:
    monkeypatch.setattr(doctor, "PLUGIN_PROBE", probe)
    check = doctor.check_plugin()
    assert check.found == found
    assert (check.verdict is Verdict.OK) == found.endswith("in place")


@pytest.mark.process
def test_this_machine_is_fit_for_the_tests() -> None:
    """Runs the real checks, including SGLang and our hooks."""
    output = io.StringIO()
    assert doctor.examine(Console(file=output, width=200)), output.getvalue()
    assert "loaded by SGLang" in output.getvalue()
