"""The flags of seer-openrlhf, and what it refuses of OpenRLHF's."""

import importlib.util
import re
from dataclasses import fields
from pathlib import Path

import pytest
from seer_openrlhf.flags import (
    ENGINES,
    FILTERING,
    FLAGS,
    OPTIONS,
    REFUSED_ABOVE_ZERO,
    REFUSED_IF_SET,
    SeerFlags,
    UsageError,
    current_flags,
    publish,
    read_flags,
    refusals,
)

URL = ["--seer.url", "http://10.0.0.1:30000"]
ONE_ENGINE = [ENGINES, "1"]


def test_flags_of_openrlhf_are_left_in_their_order() -> None:
    others = ["--actor.adam.betas", "0.9", "0.95", "--eval.steps", "-1", "--ds.lora.rank=0"]
    flags, left = read_flags([*others[:3], *URL, *others[3:], "--seer.bucket_mb=64"])
    assert left == others
    assert flags == SeerFlags(url="http://10.0.0.1:30000", bucket_mb=64)


def test_every_flag_has_an_option() -> None:
    assert {field.name for field in fields(SeerFlags)} == set(OPTIONS)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ([], "--seer.url, --seer.config: give one of the two"),
        ([*URL, "--seer.config", "a"], "--seer.url, --seer.config: give one of the two"),
        (["--seer.url", "10.0.0.1:30000"], "--seer.url: is not of the form http://host:port"),
        (["--seer.url", "http://a:b"], "--seer.url: is not of the form http://host:port"),
        (["--seer.url", "http://u:secret@a"], "--seer.url: is not of the form http://host:port"),
        (["--seer.url", "http://a/rollout"], "--seer.url: is not of the form http://host:port"),
        (["--seer.url"], "--seer.url: expected one argument"),
        (["--seer.ur", "http://a"], "--seer.ur: there is no such flag (see --help)"),
        ([*URL, "--seer.bucket=1"], "--seer.bucket: there is no such flag (see --help)"),
        ([*URL, "--seer.timeout_s", "0"], "--seer.timeout_s: '0' is not above 0 and at most 1800"),
        ([*URL, "--seer.wait_s", "-1"], "--seer.wait_s: '-1' is not a number from 0"),
        ([*URL, "--seer.wait_s", "inf"], "--seer.wait_s: 'inf' is not a number from 0"),
        (
            [*URL, "--seer.timeout_s", "1801"],
            "--seer.timeout_s: '1801' is not above 0 and at most 1800",
        ),
        (
            [*URL, "--seer.sync", "disk"],
            "--seer.sync_dir: is missing; --seer.sync disk needs a folder that all engines see",
        ),
        ([*URL, "--seer.sync_dir", "/tmp"], "--seer.sync_dir: is for --seer.sync disk"),
        ([*URL, "--seer.bucket_mb", "0.5"], "--seer.bucket_mb: '0.5' is not a whole number from 1"),
        ([*URL, "--seer.command", "seer-sgl"], "--seer.command: is for --seer.config"),
        (
            ["--seer.config", "a", "--seer.command", "'"],
            "--seer.command: is not a command line (a quote may be open)",
        ),
    ],
)
def test_a_wrong_flag_is_named_with_the_reason(argv: list[str], line: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_flags(argv)
    assert str(caught.value) == line


@pytest.mark.parametrize("flag", ["--seer.token_env", "--seer.admin_token_env"])
def test_a_token_in_place_of_its_variable_is_not_printed(flag: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_flags([*URL, flag, "hf_secret"])
    assert str(caught.value) == f"{flag}: is not the name of a variable of the environment"


def test_workers_read_the_flags_that_were_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLAGS, "")  # to be restored
    flags = SeerFlags(url="http://ü:1", timeout_s=2.5, bucket_mb=1)
    publish(flags)
    assert current_flags() == flags
    monkeypatch.delenv(FLAGS)
    with pytest.raises(RuntimeError, match="start the training with seer-openrlhf"):
        current_flags()


@pytest.mark.parametrize("flag", REFUSED_IF_SET)
def test_a_refused_switch_is_named(flag: str) -> None:
    assert list(refusals([*ONE_ENGINE, flag])) == [f"{flag}: {REFUSED_IF_SET[flag]}"]


@pytest.mark.parametrize("flag", REFUSED_ABOVE_ZERO)
@pytest.mark.parametrize("last", [0, 8])
def test_a_refused_number_counts_as_openrlhf_reads_it(flag: str, last: int) -> None:
    lines = list(refusals([*ONE_ENGINE, flag, "4", f"{flag}={last}"]))
    assert lines == ([f"{flag}: {REFUSED_ABOVE_ZERO[flag]}"] if last else [])


@pytest.mark.parametrize("argv", [[], [ENGINES, "0"], [ENGINES, "2", f"{ENGINES}=0"]])
def test_a_run_without_engines_is_refused(argv: list[str]) -> None:
    assert [line.partition(":")[0] for line in refusals(argv)] == [ENGINES]


@pytest.mark.parametrize(
    ("short", "flag"),
    [
        (["--train.colocate_al"], "--train.colocate_all"),
        (["--vllm.enable_s"], "--vllm.enable_sleep"),
        (["--vllm.sync_w"], "--vllm.sync_with_ray"),
        (["--ds.lora.r", "8"], "--ds.lora.rank"),
        (["--ds.lora.r=8"], "--ds.lora.rank"),
        (["--data.max_i=1"], "--data.max_images_per_prompt"),
    ],
)
def test_abbreviations_do_not_slip_past_the_refusals(short: list[str], flag: str) -> None:
    assert [line.partition(":")[0] for line in refusals([*ONE_ENGINE, *short])] == [flag]


def test_over_sampling_is_refused_without_filtering() -> None:
    (line,) = refusals(ONE_ENGINE, over_sampling=1.5)
    assert line.startswith("--seer.over_sampling: is for --algo.dynamic_filtering_enable")
    assert not list(refusals([*ONE_ENGINE, "--algo.dynamic_filtering_enable"], over_sampling=1.5))
    assert not list(refusals(ONE_ENGINE, over_sampling=1.0))


def test_a_value_that_is_no_number_is_an_error_of_one_line() -> None:
    with pytest.raises(UsageError, match=r"^--ds.lora.rank: invalid int value: 'x'$"):
        list(refusals([*ONE_ENGINE, "--ds.lora.rank", "x"]))


def test_values_that_belong_to_other_flags_are_not_read() -> None:
    others = ["--data.input_template", "-- {} --vllm.enable_sleep", "--eval.steps", "-1"]
    assert list(refusals([*ONE_ENGINE, *others])) == []


def test_openrlhf_has_the_refused_flags_and_no_flag_that_abbreviates_one() -> None:
    spec = importlib.util.find_spec("openrlhf")
    assert spec is not None
    assert spec.submodule_search_locations
    program = Path(spec.submodule_search_locations[0]) / "cli" / "train_ppo_ray.py"
    flags = set(re.findall(r'add_argument\(\s*f?"(--[^"]+)"', program.read_text()))
    refused = {*REFUSED_IF_SET, *REFUSED_ABOVE_ZERO, ENGINES, FILTERING}
    assert refused < flags
    assert not [flag for flag in flags for other in refused - {flag} if other.startswith(flag)]
