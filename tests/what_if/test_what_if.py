"""The command `seer-sgl what-if`: the page, the JSON object, the advice and the mistakes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.cli import main
from seer_sgl.sim.config import LengthsConfig
from seer_sgl.sim.workload import draw
from seer_sgl.what_if.orders import LABELS, TODAY, chunk_sizes
from tests.sim.commands import Command, assert_refused, command, write_trace

SMALL = ("--engines", "2", "--draws", "1", "--set", "engine.kv_tokens=8192")
CHOSEN = ("--set", "scheduling.chunk_tokens=512")
URL = "http://127.0.0.1:30000"


@pytest.fixture
def what_if(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Returns a function that runs the command in a folder with traces."""
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "samples.jsonl")
    (tmp_path / "even.csv").write_text("".join(f"{i // 8},100\n" for i in range(64)))
    return command(main, ["seer-sgl", "what-if"], monkeypatch, capsys)


def answer(what_if: Command, *options: str) -> dict[str, Any]:
    done = what_if(*options, "--json", "--log-level", "error")
    assert done.status == 0, done.err
    return dict(json.loads(done.out))


def test_all_orders_are_compared_on_the_same_tokens(what_if: Command) -> None:
    found = answer(what_if, "samples.jsonl", *SMALL, *CHOSEN, "--price", "2")
    rows = {row["name"]: row for row in found["orders"]}
    assert list(rows) == list(LABELS)
    today = min(rows[name]["wall_s"] for name in TODAY)
    for row in rows.values():
        assert row["ratio"] == pytest.approx(today / row["wall_s"], rel=1e-2)
        assert row["gpu_hours"] == pytest.approx(2 * row["wall_s"] / 3600, abs=1e-4)
        assert row["idle_gpu_hours"] == pytest.approx(
            row["gpu_hours"] * row["idle_share"], abs=1e-4
        )
        assert row["price"] == pytest.approx(2 * row["gpu_hours"], abs=0.01)
        if not row["name"].startswith("seer+"):
            assert row["wall_s"] >= found["bound_s"]
    assert (found["lengths"]["groups"], found["lengths"]["responses"]) == (12, 48)
    assert sum(found["lengths"]["bins"]) == 48
    assert [drawn["source"] for drawn in found["draws"]] == [
        "samples.jsonl",
        "groups drawn again, seed 1",
    ]


def test_equal_commands_give_equal_answers(what_if: Command) -> None:
    options = "samples.jsonl", *SMALL, *CHOSEN
    found = answer(what_if, *options)
    assert found == answer(what_if, *options)
    assert (found["chunk_tokens"], found["chunks_tried"]) == (512, [])


def test_short_even_lengths_are_answered_with_no(what_if: Command) -> None:
    options = "even.csv", "--engines", "2", "--draws", "0"
    found = answer(what_if, *options)
    assert found["advice"]["answer"] == "no"
    assert [tried["value"] for tried in found["chunks_tried"]] == [128, 64]
    assert [tried["value"] for tried in found["concurrency_tried"]] == [16, 32, 1024]
    page = what_if(*options)
    assert page.out.startswith("Do not bother: order and division bring nothing here.\n")
    assert "Prompts whose length is not in the file: 8, with 64 tokens each." in page.out


def test_requests_at_once_suffice_if_more_of_them_are_not_faster(what_if: Command) -> None:
    Path("waves.csv").write_text("".join(f"{i // 2},100\n" for i in range(62)))
    found = answer(what_if, "waves.csv", "--engines", "2", "--draws", "0", *CHOSEN)
    tried = {one["value"]: one["wall_s"] for one in found["concurrency_tried"]}
    ours = next(row["wall_s"] for row in found["orders"] if row["name"] == "seer")
    assert tried[1024] == ours < tried[16], "31 requests per engine, 16 and then 15 of them"
    assert found["concurrency"] == 1024


def test_uneven_lengths_on_engines_with_little_room_are_answered_with_yes(what_if: Command) -> None:
    lengths = draw(LengthsConfig(mean=500, max=4000, group_share=0.85), 32, 8)
    rows = [f"{group},{int(each)},64\n" for group, row in enumerate(lengths) for each in row]
    Path("long.csv").write_text("".join(rows))
    little = "--engines", "4", "--set", "engine.kv_tokens=16000"
    found = answer(what_if, "long.csv", *little, "--draws", "0", *CHOSEN)
    assert found["advice"]["answer"] == "yes"
    assert found["assumed"][-1].startswith("All prompts are there")


def test_one_group_does_not_show_what_the_prompt_explains(what_if: Command) -> None:
    Path("one.csv").write_text("0,100\n0,300\n")
    page = what_if("one.csv", "--engines", "1", "--draws", "0", *CHOSEN).out
    assert "Within a group the longest is 1.50 times the mean (median of groups).\n" in page


def test_several_traces_are_several_draws(what_if: Command) -> None:
    found = answer(what_if, "even.csv", "samples.jsonl", *SMALL, *CHOSEN)
    assert found["trace"] == "samples.jsonl"
    assert [drawn["source"] for drawn in found["draws"]] == ["samples.jsonl", "even.csv"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["no.csv"], "TRACE: no.csv: No such file or directory"),
        (["samples.jsonl", "--model", "gpt"], "--model gpt: unknown; known: qwen2.5-7b"),
        (["samples.jsonl", "--gpu", "T4"], "--gpu T4: unknown; known: A100, H100"),
        (["samples.jsonl", "--model", "qwen2.5-72b"], "does not fit on 1 x H100"),
        (["samples.jsonl", "--model", "moonlight", "--gpu", "H100"], "has its own GPUs"),
        (["samples.jsonl", "--set", "engine.kv_tokens=10"], "engine.kv_tokens: 10 tokens"),
        (["samples.jsonl", "--out", "even.csv"], "--out even.csv: File exists"),
        (["samples.jsonl", "--price", "nan"], "--price: nan is not a price"),
        (["samples.jsonl", "--set", "scheduling.policy=fcfs"], "scheduling.policy: leave it out"),
        (["samples.jsonl", "--config", "drafts.yaml"], "drafts.yaml:2: speculation.enabled: leave"),
        (["validation"], "TRACE: validation: no file *.jsonl in this folder"),
        (["samples.jsonl", "--replay"], "--replay: give the servers with --engine"),
        (["samples.jsonl", *("--engine", "foo")], "--engine foo: expected http://host:port"),
        (
            ["samples.jsonl", *("--engine", URL, "--engine", f"{URL}/")],
            f"--engine {URL}: given twice",
        ),
        (
            ["samples.jsonl", *("--engine", URL, "--engines", "3")],
            "--engines: not together with --engine",
        ),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    what_if: Command, options: list[str], complaint: str
) -> None:
    Path("validation").mkdir()
    Path("validation/val_7.jsonl").write_text('{"group": 1, "length": 5}\n')
    Path("drafts.yaml").write_text("speculation:\n  enabled: true\n")
    assert_refused(what_if(*options), complaint)


def test_a_config_fixes_the_chunk_and_is_named_beside_the_engines(what_if: Command) -> None:
    Path("c.yaml").write_text("engine: {kv_tokens: 8192}\nscheduling: {chunk_tokens: 512}\n")
    options = "even.csv", "--config", "c.yaml", "--set", "pool.gb_s=3", "--draws", "0"
    found = answer(what_if, *options)
    assert (found["chunk_tokens"], found["chunks_tried"]) == (512, [])
    changed = "; changed by --config or --set: engine.kv_tokens, pool.gb_s"
    assert found["profile"].endswith(changed)
    assert "Your model: --model, --gpu and --gpus-per-engine say another." in found["assumed"]
    assert "The number of engines: --engines says another." in found["assumed"]


def test_one_token_has_an_answer(what_if: Command) -> None:
    Path("one.csv").write_text("a,1,1\n")
    fast = "--set", "engine.overhead_ms=0", "--set", "engine.prefill_tok_s=1.0e+9"
    page = what_if("one.csv", "--draws", "0", *CHOSEN, *fast, "--log-level", "error")
    assert (page.status, page.err) == (0, "")
    assert "no order can be faster" in page.out


def test_chunks_are_powers_of_two_below_the_longest_response() -> None:
    assert chunk_sizes(65536) == [131072, 16384, 8192, 4096, 2048]
    assert chunk_sizes(4000) == [4096, 512, 256, 128, 64]
    assert chunk_sizes(3) == [64, 4]


@pytest.mark.process
def test_what_if_needs_neither_torch_nor_numba_nor_matplotlib(tmp_path: Path) -> None:
    write_trace(tmp_path / "samples.jsonl")
    code = """
import sys
for name in ("torch", "numba", "matplotlib", "sglang"):
    sys.modules[name] = None
sys.argv = ["seer-sgl", "what-if", "samples.jsonl", "--engines", "2", "--draws", "0", "--json"]
from seer_sgl.cli import main
main()
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert json.loads(ran.stdout)["lengths"]["responses"] == 48


@pytest.mark.process
def test_out_has_json_and_a_picture(what_if: Command, tmp_path: Path) -> None:
    assert what_if("samples.jsonl", *SMALL, "--out", "out").status == 0
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"what-if.json", "what-if.svg", "what-if.png"}
    assert (tmp_path / "out" / "what-if.png").stat().st_size > 5000
