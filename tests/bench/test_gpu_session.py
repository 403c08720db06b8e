"""A session on a GPU machine: its parts, what is left to do, the archive; no GPU is needed."""

import io
import runpy
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import imposed, machine
from bench.gpu.parts import CONFIGS, Machine, Part, Session, configs, inputs, parts, rehearsal
from bench.gpu.results import Results
from bench.gpu.session import Measuring, run, waiting
from bench.gpu.step_times import table
from bench.gpu.step_trace import breakdown, covered
from seer_sgl.benchmark.arms import EVERY
from seer_sgl.benchmark.config import load_bench
from seer_sgl.benchmark.derive import servers_config
from tests.docs.command_checks import python

OUT = Path("out")
EVERYTHING = Machine(gpus=1, fa3=True, shapes_fa3=True)
VERSION = Part("version", ("pip", "--version"))
FAILS = Part("fails", ("json.tool", "/absent"))
HANGS = Part("hangs", ("http.server", "--bind", "127.0.0.1", "0"))


@pytest.mark.parametrize(
    "program", ["exact", "kernels", "kv_moves", "machine", "session", "step_times", "step_trace"]
)
def test_without_a_gpu_a_program_ends_with_one_line_and_status_2(
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(machine, "gpu_problem", lambda: "this needs an NVIDIA GPU")
    monkeypatch.setattr(sys, "argv", [program, str(tmp_path / "out.json")])
    name = f"bench.gpu.{program}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    if program == "machine":  # it is its own module, and would be run anew
        with pytest.raises(SystemExit) as ended:
            machine.require_gpu(name)
    else:
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(name, run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{name}: this needs an NVIDIA GPU\n"
    assert not list(tmp_path.iterdir())


def test_every_part_is_a_command_that_exists() -> None:
    every = [*inputs(Session(OUT)), *parts(Session(OUT), EVERYTHING)]
    assert len({part.name for part in every}) == len(every)
    for part in every:
        if part.command[0] not in ("bench.full", "seer_sgl"):  # below; the doctor
            python(["-m", *part.command])
    for part in rehearsal(Session(OUT)):
        python(["-m", *part.command])


@pytest.mark.parametrize("path", CONFIGS.values(), ids=lambda path: path.name)
def test_every_arm_of_a_benchmark_has_servers(path: Path) -> None:
    config = load_bench(path)
    for arm in config.bench.arms:
        servers_config(EVERY[arm], config)
    assert EVERY[config.bench.arms[0]].kind == "plain"


def test_the_benchmarks_get_the_options_of_the_command_line(tmp_path: Path) -> None:
    session = Session(tmp_path, bench=["--rounds", "1"])
    commands = {part.name: part.command for part in parts(session, EVERYTHING)}
    benchmarks = [command for command in commands.values() if command[0] == "bench.full"]
    assert commands["reasoner-4"][-4:] == ("--engines", "4", "--rounds", "1")
    predicted = [command for command in benchmarks if "--sim" in command]
    assert len(predicted) == len(benchmarks) - 1, "all but the first"
    assert all(Path(command[command.index("--sim") + 1]).is_file() for command in predicted)
    assert "engines.sglang.attention-backend=fa3" in commands["shapes-2"]
    assert "engines.sglang.attention-backend=fa3" not in commands["reasoner-2"]
    without = {part.name for part in parts(session, Machine())}
    assert commands.keys() - without == {"exact-fa3", "steps-fa3"}


def test_kernels_that_arrive_in_a_session_change_no_benchmark_of_shapes() -> None:
    with_fa3 = {
        "shapes-first": {"command": "bench.full --set engines.sglang.attention-backend=fa3"}
    }
    without = {"machine": {"command": "x"}, "shapes-first": {"command": "bench.full"}}
    for fa3, done, used in (
        (True, {}, True),
        (False, {}, False),
        (True, without, False),
        (True, with_fa3, True),
    ):
        found = parts(Session(OUT), Machine.of(1, fa3, done))
        commands = {part.name: " ".join(part.command) for part in found}
        assert ("exact-fa3" in commands) == fa3
        for name in ("shapes-first", "shapes-2", "shapes-4"):
            assert ("attention-backend=fa3" in commands[name]) == used, (done, name)


def test_a_shape_speaks_the_recorded_text_and_a_real_model_its_own() -> None:
    for bench, imposes in (([], True), (["--set", "model.path=M"], False)):
        for part in parts(Session(OUT, bench), EVERYTHING):
            shape = part.name.startswith("shapes")
            words = " ".join(part.command)
            assert (imposed.FILE in words) == (shape and imposes), part.name


def test_where_there_are_several_gpus_each_engine_has_its_own() -> None:
    for gpus, shared in ((1, True), (2, False)):
        texts = configs(Session(OUT), Machine(gpus))
        assert {*texts} == {OUT / "configs" / path.name for path in CONFIGS.values()}
        assert {"base-gpu-id" in text for text in texts.values()} == {shared}


def test_a_later_call_continues_after_the_parts_that_were_begun() -> None:
    every = [VERSION, FAILS, HANGS]
    assert waiting(every, {}, []) == every
    assert waiting(every, {"version": {}, "fails": {"status": 1}}, []) == [HANGS]
    assert waiting(every, {"version": {}}, ["version"]) == [VERSION]
    cut = {"version": {"cut": True}, "fails": {"status": 1, "cut": False}}
    assert waiting(every, cut, []) == [HANGS, VERSION], "a part that was cut is offered again"
    with pytest.raises(ValueError, match="no part 'all'; parts: version, fails, hangs"):
        waiting(every, {}, ["all"])


@pytest.mark.process
def test_a_part_that_fails_costs_no_other_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Results(tmp_path / "out", tmp_path / "results.tar.gz")
    assert not Measuring(results).measure(lambda: [FAILS, VERSION], 3600.0)
    _, failed, _, fine = capsys.readouterr().out.splitlines()
    assert "status 1" in failed or "status 2" in failed
    assert "/absent" in failed
    assert fine.endswith("ok")
    assert results.record()["version"]["status"] == 0
    with tarfile.open(results.archive) as archive:
        assert {"out/session.json", "out/version.log", "out/fails.log"} <= set(archive.getnames())


def test_no_part_is_begun_with_too_little_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Results(tmp_path / "out", tmp_path / "results.tar.gz")
    assert Measuring(results).measure(lambda: [VERSION], 60.0)
    assert capsys.readouterr().out == "version and the parts after it wait for the next call\n"
    assert results.record() == {}


@pytest.mark.process
def test_a_part_at_the_end_of_the_time_is_asked_to_end(tmp_path: Path) -> None:
    ended = run(HANGS, tmp_path / "log", 1.0)
    assert ended["cut"]
    assert ended["command"] == "python -m http.server --bind 127.0.0.1 0"


def test_the_archive_has_the_ends_of_logs_and_no_traces(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "engines").mkdir(parents=True)
    (out / "engines" / "e0.log").write_text("x" * 100_000 + "the end")
    (out / "a.trace.json.gz").write_text("large")
    (out / "figures.json").write_text("{}")
    Results(out, tmp_path / "results.tar.gz").pack()
    with tarfile.open(tmp_path / "results.tar.gz") as archive:
        assert archive.getnames() == ["out/engines/e0.log", "out/figures.json"]
        log = archive.extractfile("out/engines/e0.log")
        assert log is not None
        assert isinstance(log, io.BufferedIOBase)
        content = log.read()
    assert len(content) == 60_000
    assert content.endswith(b"the end")


def test_overlapping_work_of_the_gpu_counts_once() -> None:
    assert covered([(0, 4), (1, 2), (3, 6), (10, 11)]) == 7


def test_a_trace_becomes_figures_per_step() -> None:
    events: list[dict[str, Any]] = [
        {"cat": "kernel", "name": "attention", "ts": 0, "dur": 40},
        {"cat": "kernel", "name": "attention", "ts": 50, "dur": 40},
        {"cat": "gpu_memcpy", "name": "copy", "ts": 90, "dur": 10},
        {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 0, "dur": 30},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 7},
        {"ph": "M", "name": "process_name"},
    ]
    figures = breakdown(events, steps=2)
    assert figures["gpu_busy"] == 0.9
    assert figures["ms_per_step"] == 0.05
    assert figures["gpu"][0] == {"name": "attention", "us_per_step": 40.0, "calls": 1.0}
    waits = [{"name": "cudaStreamSynchronize", "us_per_step": 15.0, "calls": 0.5}]
    assert figures["host"] == waits
    with pytest.raises(ValueError, match="no GPU work"):
        breakdown(events[3:], steps=2)


def test_step_times_are_shown_beside_those_of_plain_steps() -> None:
    rows = [
        {"context": 64, "batch": 1, "width": 5, "ms": 3.0},
        {"context": 64, "batch": 1, "width": 1, "ms": 2.0},
        {"context": 64, "batch": 8, "width": 1, "ms": 4.0},
    ]
    first, second = table(rows).splitlines()
    assert first == "context 64, batch 1: 2.00 ms; 1: x1.00, 5: x1.50"
    assert second.startswith("context 64, batch 8")
