"""The doctor: a line a check, each failure with the command that mends it, and an exit status."""

import io

import pytest
from rich.console import Console

from seer_sgl import doctor
from seer_sgl.doctor import Check, Verdict


def examined(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> tuple[bool, list[str]]:
    monkeypatch.setattr(doctor, "_checks", lambda: iter(checks))
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
    assert lines[1] == "optional mooncake  not installed; mend: pip install m"
    healthy, lines = examined(monkeypatch, fine, need, wish)
    assert not healthy
    assert lines[1] == "missing  torch     not installed; mend: make venv"


def test_what_is_not_installed_is_named_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda _: None)
    for check in (doctor._torch(), doctor._sglang()):
        assert (check.verdict, check.found) == (Verdict.MISSING, "not installed")
        assert check.mend
    assert doctor._mooncake().verdict is Verdict.OPTIONAL
    monkeypatch.setattr(doctor, "_version", lambda _: "0.5.20")
    assert doctor._sglang().found == "0.5.20, needs 0.5.21"


def test_too_little_memory_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ENGINE_MEMORY_GB", 10_000.0)
    assert doctor._memory().verdict is Verdict.MISSING


@pytest.mark.parametrize(
    ("probe", "found"),
    [
        ("print('hooks:', 3, 'missing:')", "loaded by SGLang, 3 hooks in place"),
        ("print('hooks:', 0, 'missing:')", "SGLang does not find it"),
        ("print('hooks:', 3, 'missing:', 'sglang.x')", "cannot hook sglang.x"),
        ("raise ImportError('no such thing')", "SGLang does not load: ImportError: no such thing"),
    ],
)
def test_the_plugin_is_tried_not_assumed(
    monkeypatch: pytest.MonkeyPatch, probe: str, found: str
) -> None:
    monkeypatch.setattr(doctor, "_PLUGIN_PROBE", probe)
    check = doctor._plugin()
    assert check.found == found
    assert (check.verdict is Verdict.OK) == ("in place" in found)


def test_this_machine_is_fit_for_the_tests() -> None:
    """The real checks, SGLang and our hooks included."""
    output = io.StringIO()
    assert doctor.examine(Console(file=output, width=200)), output.getvalue()
    assert "loaded by SGLang" in output.getvalue()
