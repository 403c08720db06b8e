"""The command `seer-openrlhf`: what it checks, and in which order it starts things."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fake_seer_sgl import COMMAND
from seer_openrlhf import command
from seer_openrlhf.checks import ServeError
from seer_openrlhf.flags import FLAGS, SeerFlags

URL = ["--seer.url", "http://127.0.0.1:30000"]
TRAIN = ["--vllm.num_engines", "1", "--train.seed", "7"]
PROGRAM = """
import json, os, sys, urllib.request
import events_of_test
url = json.loads(os.environ["SEER_OPENRLHF"])["url"]
events_of_test.EVENTS.append(("train", __name__, sys.argv[1:], url))
if "--bad" in sys.argv:
    sys.exit(2)
if "--break" in sys.argv:
    raise ValueError("too\\nlong")
if "--ask" in sys.argv:
    urllib.request.urlopen(f"{url}/health").close()
"""


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What happens, in order; OpenRLHF and Ray are replaced, and the server at URL is ready."""
    found: list[tuple[Any, ...]] = []

    def note(name: str, result: Any = None) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            found.append((name, *arguments, *([options] if options else [])))
            return result

        return called

    modules: dict[str, dict[str, Any]] = {
        "events_of_test": {"EVENTS": found},
        "ray": {"init": note("ray"), "shutdown": note("end of ray")},
        "seer_openrlhf.front": {"close_fronts": note("close")},
    }
    for name, values in modules.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    for name, result in (("problems", ()), ("rebind", None), ("require_server", None)):
        monkeypatch.setattr(command, name, note(name, result))
    (tmp_path / "fake_train_ppo_ray.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "MODULE", "fake_train_ppo_ray")
    monkeypatch.setattr(sys, "argv", ["seer-openrlhf"])
    monkeypatch.setenv(FLAGS, "")  # to be restored
    for variable in command.WORKERS:
        monkeypatch.delenv(variable, raising=False)
    return found


def names(events: list[tuple[Any, ...]]) -> list[str]:
    return [str(event[0]) for event in events]


def test_openrlhf_runs_with_its_own_flags_after_everything_is_in_place(
    events: list[tuple[Any, ...]],
) -> None:
    command.main([*TRAIN[:2], *URL, *TRAIN[2:]])
    assert names(events) == [
        "problems",
        "require_server",
        "rebind",
        "ray",
        "train",
        "close",
        "end of ray",
    ]
    assert events[-3] == ("train", "__main__", TRAIN, URL[1])


def test_workers_get_the_flags_openrlhfs_variables_and_no_token(
    events: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_TOKEN", "secret")
    command.main([*URL, *TRAIN, "--seer.token_env", "MY_TOKEN"])
    (options,) = [event[1] for event in events if event[0] == "ray"]
    variables = options["runtime_env"]["env_vars"]
    assert SeerFlags(**json.loads(variables.pop(FLAGS))).token_env == "MY_TOKEN"
    assert variables == {**command.WORKERS, "NCCL_DEBUG": "INFO"}
    assert "secret" not in str(options)
    assert options.keys() == {"runtime_env"}


@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        (TRAIN, ["--seer.url, --seer.config: give one of the two"]),
        (["--seer.config", "none.yaml", *TRAIN], ["--seer.config: there is no file none.yaml"]),
        (
            ["--seer.config", "x" * 300, *TRAIN],
            [f"--seer.config: {'x' * 300}: File name too long"],
        ),
        (
            [*URL, "--ds.lora.ran", "8"],
            [
                "--ds.lora.rank: the engines take whole weights, and LoRA trains adapters",
                "--vllm.num_engines: must be 1 or more; the server decides how many engines there "
                "are",
            ],
        ),
    ],
)
def test_a_wrong_command_line_is_status_2_and_nothing_starts(
    argv: list[str],
    lines: list[str],
    events: list[tuple[Any, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines() == [f"seer-openrlhf: {line}" for line in lines]
    assert events == []


def test_a_difference_of_openrlhf_is_status_1_and_nothing_starts(
    events: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "problems", lambda: iter(["a name is missing"]))
    with pytest.raises(SystemExit) as caught:
        command.main([*URL, *TRAIN])
    assert caught.value.code == 1
    assert capsys.readouterr().err == "seer-openrlhf: a name is missing\n"
    assert events == []


def test_a_server_that_does_not_answer_is_status_1_and_ray_does_not_start(
    events: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(flags: SeerFlags) -> None:
        raise ServeError(f"{flags.url} is away")

    monkeypatch.setattr(command, "require_server", refuse)
    with pytest.raises(SystemExit) as caught:
        command.main([*URL, *TRAIN])
    assert caught.value.code == 1
    assert capsys.readouterr().err == f"seer-openrlhf: {URL[1]} is away\n"
    assert names(events) == ["problems"]


def test_a_server_of_its_own_is_ready_before_ray_starts_and_ends_with_the_training(
    events: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("ready")
    command.main(["--seer.config", str(config), "--seer.command", COMMAND, *TRAIN, "--ask"])
    assert names(events)[1:] == ["require_server", "rebind", "ray", "train", "close", "end of ray"]
    started = json.loads((tmp_path / "started").read_text())
    assert events[-3][3] == f"http://127.0.0.1:{started['options']['--port']}"
    assert not Path(f"/proc/{started['pid']}").exists()


def test_openrlhfs_own_exit_status_is_kept_and_the_server_ends(
    events: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("ready")
    with pytest.raises(SystemExit) as caught:
        command.main(["--seer.config", str(config), "--seer.command", COMMAND, *TRAIN, "--bad"])
    assert caught.value.code == 2
    started = json.loads((tmp_path / "started").read_text())
    assert not Path(f"/proc/{started['pid']}").exists()


def test_a_training_that_fails_is_status_1_and_its_last_line_has_the_reason(
    events: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main([*URL, *TRAIN, "--break"])
    assert caught.value.code == 1
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "Traceback (most recent call last):"
    assert last == "seer-openrlhf: the training failed: ValueError: too long"
    assert names(events)[-1] == "end of ray"


def test_the_help_names_the_flags(
    events: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["--help"])
    assert caught.value.code == 0
    assert "--seer.admin_token_env" in capsys.readouterr().out
    assert os.environ[FLAGS] == ""
