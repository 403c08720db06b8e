"""The command `python -m bench.faults`: what faults cost; every user error is one line."""

import json
from pathlib import Path

import pytest

from bench.faults.__main__ import main
from seer_sgl.sim.variants import VARIANTS
from tests.sim.commands import SMALL, Command, assert_refused, command, write_trace

SLOW = ("--set", "engine.overhead_ms=5", "--set", "scheduling.chunk_tokens=64")
FAULTS = """
seed: 3
stall_timeout_s: 5
recovery_timeout_s: 10000
deaths: {mean_s: 100, seconds: [1, 5], together: 0.5}
replies: {lost: 0.05, late: 0.2, late_s: [0, 3]}
events:
- {at_s: 2, kind: hang, engine: 1, seconds: 3}
"""


@pytest.fixture
def simulate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Returns a function that runs the command in a folder with a trace and a file of faults."""
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "samples.jsonl")
    (tmp_path / "faults.yaml").write_text(FAULTS)
    return command(main, ["bench.faults"], monkeypatch, capsys)


@pytest.mark.process
def test_faults_are_shown_beside_the_undisturbed_rollout(simulate: Command) -> None:
    options = "faults.yaml", "--trace", "samples.jsonl", *SMALL, *SLOW
    report = json.loads(simulate(*options, "--json").out)
    assert [cost["policy"] for cost in report["policies"]] == list(VARIANTS)
    for cost in report["policies"]:
        undisturbed, hit = cost["undisturbed"], cost["disturbed"]
        assert hit["wall_s"] > undisturbed["wall_s"]
        assert cost["faults"]["hang"] == 1
        assert cost["lost_chunks"] > 0
        assert cost["wasted_tokens"] > 0
        assert cost["given_up_groups"] == 0
    (row,) = json.loads(simulate(*options, "--policy", "seer", "--json").out)["policies"]
    assert row in report["policies"], "equal seeds give equal faults"
    table = simulate(*options, "--policy", "seer")
    assert (table.status, "1 hang" in table.out) == (0, True)


def test_faults_that_end_a_rollout_are_one_line_and_status_1(simulate: Command) -> None:
    Path("gone.yaml").write_text("events:\n- {at_s: 2, kind: death, seconds: 1000}\n")
    options = "gone.yaml", "--trace", "samples.jsonl", "--policy", "seer", *SLOW
    done = simulate(*options, "--log-level", "error")
    assert (done.status, done.out) == (1, "")
    assert "seer: no engine has served for 60 s" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "bad.yaml: it has no faults"),
        ("deaths:\n  mean: 5\n", "bad.yaml:2: deaths.mean: unknown key; did you mean mean_s?"),
        ("deaths:\n  mean_s: 0\n", "bad.yaml:2: deaths.mean_s: expected float >= 0.1"),
        ("hangs:\n  seconds: [5, 1]\n", "bad.yaml:2: hangs.seconds: 5 is more than 1"),
        ("cuts:\n  seconds: 5\n", "bad.yaml:2: cuts.seconds: expected array, got int"),
        ("replies: {lost: 0.7, late: 0.6}\n", "bad.yaml:1: replies: the shares add up to more"),
        ("acks: {untrue: 1.5}\n", "acks.untrue: expected float <= 1.0"),
        ("events:\n- {at_s: 1, kind: fire}\n", "events[0].kind: invalid enum value 'fire'"),
        ("events:\n- {at_s: 1, kind: hang, engine: 9}\n", "events[0].engine: 9; there are"),
        (
            "events:\n- {at_s: 1, kind: cut, other_weights: true}\n",
            "events[0].other_weights: only a death changes weights",
        ),
        ("seed: [\n", "bad.yaml:"),
    ],
)
def test_a_mistake_in_the_faults_is_one_line_and_status_2(
    simulate: Command, text: str, complaint: str
) -> None:
    Path("bad.yaml").write_text(text)
    assert_refused(simulate("bad.yaml", "--trace", "samples.jsonl", *SMALL), complaint)
