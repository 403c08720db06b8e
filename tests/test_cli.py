"""The command line without engines: every mistake gives one line and exit status 2."""

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from seer_sgl.cli import cli, exiting, main
from seer_sgl.engine.launch.process import server_flags

MODEL_CONFIG = {
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "hidden_size": 1024,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config, prompts of token ids and a model folder that is never loaded."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL_CONFIG))
    (tmp_path / "c.yaml").write_text("engines:\n  launch: external\n  urls: ['http://127.0.0.1:9']")
    (tmp_path / "p.jsonl").write_text('{"prompt_ids": [1, 2, 3]}\n')
    (tmp_path / "bad.jsonl").write_text('{"prompt_ids": [63]}\n{"prompt_ids": [64]}\n')
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt_ids": [1] * 200}) + "\n")
    (tmp_path / "odd" / "samples.jsonl").mkdir(parents=True)
    return tmp_path


Rollout = Callable[..., tuple[int, str]]


@pytest.fixture
def rollout(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Rollout:
    """Runs the command in the folder; returns its exit status and its output."""
    monkeypatch.chdir(folder)

    def call(*options: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["seer-sgl", "rollout", *options])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err.strip()

    return call


def test_a_command_runs_without_standard_output_and_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as Python starts after `>&-`
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "argv", ["seer-sgl", "rollout", "--config", "no.yaml"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


GOOD = ["--config", "c.yaml", "--prompts", "p.jsonl"]
POOLED = ["--prompts", "p.jsonl", "--set", "model.path=model", "--set", "kv_pool.backend=mooncake"]
LOCAL = ["--set", "model.path=model"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--config", "no.yaml"], "seer-sgl: no.yaml: No such file or directory"),
        (["--config", "c.yaml"], "seer-sgl: rollout.prompts: no prompts; give --prompts or set"),
        ([*GOOD, "--set", "x.y=1"], "seer-sgl: --set x.y=1: x: unknown key"),
        (["--config", "c.yaml", "--prompts", "no.jsonl"], "seer-sgl: no.jsonl: No such file"),
        (
            [*GOOD, "--set", "scheduling.lengths=no.jsonl"],
            "seer-sgl: scheduling.lengths: no.jsonl: No such file",
        ),
        (
            [*GOOD, "--set", "scheduling.lengths=p.jsonl"],
            "seer-sgl: scheduling.lengths: p.jsonl:1: give exactly one of response_length and",
        ),
        (
            [*GOOD, "--set", "draft={scope: fleet, hub: 'h:1', history: no.jsonl}"],
            "seer-sgl: draft.history: no.jsonl: No such file",
        ),
        (
            [*GOOD, "--set", "draft={scope: fleet, hub: 'h:1', history: p.jsonl}"],
            "seer-sgl: draft.history: p.jsonl:1: object missing required field response_ids",
        ),
        ([*GOOD, "--set", "sampling.stop=x"], "sampling.stop: stop strings need a tokenizer"),
        ([*GOOD, "--compare"], "seer-sgl: --compare: it starts plain SGLang itself, which needs"),
        ([*GOOD, "--out", "p.jsonl"], "seer-sgl: --out p.jsonl: File exists"),
        ([*GOOD, "--out", "o" * 300], "o: File name too long"),
        ([*GOOD, "--out", "odd", "--overwrite"], "seer-sgl: --out odd: Is a directory"),
        (
            [*POOLED, "--set", "kv_pool.memory=16mb"],
            "seer-sgl: kv_pool.memory: 1 x 16mb cannot hold the KV of one chunk of 8192 tokens",
        ),
        ([*LOCAL, "--prompts", "bad.jsonl"], "seer-sgl: bad.jsonl:2: token id 64 is outside the"),
        ([*LOCAL, "--prompts", "long.jsonl"], "seer-sgl: long.jsonl:1: 200 prompt tokens; the"),
        ([*GOOD, "--set", "engines.urls=[]"], "seer-sgl: engines.urls: launch: external needs at"),
        (
            [*GOOD, "--set", "engines={}", "--set", "model.path=nowhere/at/all"],
            "seer-sgl: model.path: nowhere/at/all does not exist",
        ),
        (
            [*GOOD, "--set", "engines={}", "--set", f"model.path={'m' * 300}"],
            "m/config.json: File name too long",
        ),
        (
            [*GOOD, "--set", "engines={}", "--set", "model.path=."],
            "seer-sgl: model.path: . has no config.json",
        ),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    rollout: Rollout, options: list[str], complaint: str
) -> None:
    status, output = rollout(*options)
    assert status == 2
    assert complaint in output
    assert "\n" not in output


def test_a_mooncake_nobody_answers_for_is_named_before_any_engine_starts(rollout: Rollout) -> None:
    status, output = rollout(*POOLED, "--set", "kv_pool.master=127.0.0.1:9")
    assert status == 2
    assert output.splitlines() == [
        "1 groups, 8 requests",
        "seer-sgl: kv_pool.master: nothing answers at 127.0.0.1:9",
    ]


@pytest.mark.process
def test_an_engine_nobody_answers_for_is_status_1(rollout: Rollout) -> None:
    status, output = rollout(*GOOD)
    assert status == 1
    assert output.splitlines()[-1].startswith(
        "seer-sgl: not ready after 10 s: engine e0 (http://127.0.0.1:9): Cannot connect"
    )


def test_samples_of_an_earlier_rollout_are_not_overwritten(folder: Path, rollout: Rollout) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "samples.jsonl").write_text("precious\n")
    status, output = rollout(*GOOD)
    assert status == 2
    assert output == (
        "seer-sgl: --out out: out/samples.jsonl exists; use another folder or --overwrite"
    )
    assert (folder / "out" / "samples.jsonl").read_text() == "precious\n"


def test_sglang_flags_pass_through_untouched() -> None:
    flags = server_flags(
        {
            "tp-size": 2,
            "enable_metrics": True,
            "disable-radix-cache": False,
            "lora-paths": ["a", "b"],
        }
    )
    assert flags == ["--tp-size", "2", "--enable-metrics", "--lora-paths", "a", "b"]


def test_unknown_commands_and_options_are_usage_errors(rollout: Rollout) -> None:
    assert rollout("--nope")[0] == CliRunner().invoke(cli, ["nope"]).exit_code == 2


def test_an_output_on_a_full_disk_is_one_line_and_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(SystemExit) as ended, exiting():
        os.write(full, b"a table")
    os.close(full)
    assert ended.value.code == 1
    assert capsys.readouterr().err == "seer-sgl: No space left on device\n"


def test_the_version_is_that_of_the_package() -> None:
    assert version("seer-sgl") in CliRunner().invoke(cli, ["--version"]).output
