"""The config errors of `seer-sgl bench`, the arms that it skips, and the servers that it uses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from seer_sgl.benchmark import fleets
from seer_sgl.benchmark.arms import EVERY
from seer_sgl.benchmark.config import BenchConfig, load_ready_bench, overrides_from
from seer_sgl.benchmark.derive import arm_config, servers_config
from seer_sgl.benchmark.fleets import runnable
from seer_sgl.cli import cli
from seer_sgl.errors import ConfigError

PLAIN = "http://a:1,http://b:1"
LINK = "engines.link: a KV pool of external engines needs the driver's host:port here"
SHARED = ["engines.link=h:1", "kv_pool.namespace=run", "kv_pool.master=h:2", "draft.hub=h:3"]


def external(*engines: str, arms: str | None = None, overrides: Any = ()) -> BenchConfig:
    options = overrides_from({"engines": engines, "arms": arms})
    return load_ready_bench(gpu=False, overrides=[*options, *overrides])


def plain_arms(config: BenchConfig) -> set[str]:
    return {name for name in config.bench.arms if EVERY[name].kind == "plain"}


def test_plain_servers_that_run_already_are_enough_for_plain_arms(log_lines: list[str]) -> None:
    config = external(PLAIN)
    assert {arm.name for arm in runnable(config)} == plain_arms(config)
    assert "skipping arm kv_pool: no servers in bench.urls.pool" in log_lines
    chosen = external(PLAIN, arms="group_round_robin,divided")
    assert [arm.name for arm in runnable(chosen)] == ["group_round_robin", "divided"]


def test_an_arm_whose_servers_lack_what_it_needs_is_left_out_with_the_reason(
    log_lines: list[str],
) -> None:
    config = external(f"plain={PLAIN}", "pool=http://a:2", "drafting=http://a:3")
    assert {arm.name for arm in runnable(config)} == plain_arms(config)
    assert {f"skipping arm kv_pool: {LINK}", f"skipping arm seer: {LINK}"} <= set(log_lines)


def test_servers_with_all_they_need_run_every_arm_of_their_kind() -> None:
    config = external(f"plain={PLAIN}", "drafting=http://a:3", overrides=SHARED)
    arms = {arm.name for arm in runnable(config)}
    assert arms == plain_arms(config) | {"seer", "seer_published", "greedy_seer"}


def test_with_exact_engines_all_arms_are_alike_and_sglangs_own_speculation_is_left_out(
    log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_ready_bench(gpu=False, overrides=["engines.exact=true", "draft.paths=4"])
    every, trees = {*config.bench.arms}, {"seer", "seer_published", "greedy_seer"}
    arms = runnable(config)
    assert every - {arm.name for arm in arms} == {"greedy_ngram"}
    assert all(servers_config(arm, config).engines.exact for arm in arms)
    reason = "engines.sglang.speculative-algorithm: not with engines.exact"
    assert f"skipping arm greedy_ngram: {reason}" in log_lines
    monkeypatch.setattr(fleets, "gpu_visible", lambda: True)
    assert every - {arm.name for arm in runnable(config)} == {"greedy_ngram", *trees}
    assert any("skipping arm seer: draft.paths: 4 drafts trees" in line for line in log_lines)


def test_where_no_arm_remains_the_first_reason_is_told() -> None:
    with pytest.raises(ConfigError) as error:
        runnable(external("drafting=http://a:3", arms="seer,kv_pool"))
    assert str(error.value) == f"bench.arms: no arm can run with this config; seer: {LINK}"


@pytest.mark.parametrize(
    ("engines", "override", "complaint"),
    [
        (PLAIN, "sampling.top_k=0", "--set sampling.top_k=0: sampling.top_k: must be -1"),
        (PLAIN, "engines.link=h", "engines.link: 'h' is not of the form host:port"),
        (PLAIN, "scheduling.lengths=f", "scheduling.lengths: no arm has a prior"),
        ("plain=a:1", "bench.rounds=1", "engines.urls: 'a:1' is not of the form"),
        ("fast=http://a:1", "bench.rounds=1", "bench.urls: invalid enum value 'fast'"),
        (PLAIN, "bench.urls.pool=[b:1]", "bench.urls.pool: 'b:1' is not of the form"),
        (PLAIN, "bench.urls.pool=[]", "bench.urls.pool: launch: external needs at least one"),
    ],
)
def test_what_is_wrong_whatever_the_arm_is_refused_at_once(
    engines: str, override: str, complaint: str
) -> None:
    with pytest.raises(ConfigError) as error:
        external(engines, overrides=[override])
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def refusal(*options: str) -> str:
    """Returns the reason why `seer-sgl bench` refuses the options."""
    ended = CliRunner().invoke(cli, ["bench", *options])
    assert isinstance(ended.exception, ConfigError)
    assert ended.exception.exit_status == 2
    return str(ended.exception)


def test_two_configs_at_once_are_refused() -> None:
    assert refusal("--gpu", "--config", "mine.yaml").startswith("--gpu: ")


@pytest.mark.parametrize(
    ("name", "has"),
    [("rounds.jsonl", "already has a benchmark"), ("samples.jsonl", "has a rollout")],
)
def test_a_folder_with_results_is_refused_and_keeps_them(
    tmp_path: Path, name: str, has: str
) -> None:
    (tmp_path / name).write_text("{}\n")
    line = f"--out {tmp_path}: the folder {has}; use another folder"
    assert refusal("--out", str(tmp_path)) == line
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "{}\n"


def test_a_folder_that_cannot_be_read_is_refused() -> None:
    assert refusal("--out", "o" * 300).endswith("o: File name too long")


def test_the_ready_config_finds_its_files_from_any_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert load_ready_bench(gpu=False).model.path == "bench/reasoner/model", (
        "a path that exists is kept as written"
    )
    monkeypatch.chdir(tmp_path)
    config = load_ready_bench(gpu=False)
    assert (Path(config.model.path or "") / "config.json").exists()
    assert Path(config.rollout.prompts or "").is_file()
    mine = load_ready_bench(gpu=False, overrides=["model.path=mine"])
    assert mine.model.path == "mine"


@pytest.mark.parametrize(
    ("configured", "served"),
    [
        ("org/Model", "org/Model"),
        ("org/Model", "/data/Model"),
        ("/mine/Model/", "/data/Model"),
        ("org/Model", "/cache/models--org--Model/snapshots/0a1b"),
        ("/cache/models--org--Model/snapshots/0a1b", "org/Model"),
        ("gpt2", "/cache/models--gpt2/snapshots/0a1b"),
    ],
)
def test_a_model_goes_by_several_names(configured: str, served: str) -> None:
    fleets._check_kind(EVERY["divided"], fleet(served), of_model(configured))


@pytest.mark.parametrize("served", ["org/Other", "/cache/models--org--Other/snapshots/0a1b"])
def test_servers_of_another_model_are_refused(served: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.path: org/Model, but http://a:1 runs .*Other"):
        fleets._check_kind(EVERY["divided"], fleet(served), of_model("org/Model"))


def test_servers_of_a_kind_are_named_once() -> None:
    with pytest.raises(ConfigError, match="--engines http://b:1: kind given twice"):
        overrides_from({"engines": ("plain=http://a:1", "http://b:1")})
    both = overrides_from({"engines": ("plain=http://a:1", "pool=http://b:1")})
    assert {"bench.urls.plain=[http://a:1]", "bench.urls.pool=[http://b:1]"} < set(both)
    with pytest.raises(ConfigError, match="--engines 4: starts servers; give no other"):
        overrides_from({"engines": ("4", "http://b:1")})


def test_a_limit_of_chunks_in_flight_is_for_those_who_divide() -> None:
    base = load_ready_bench(gpu=False, overrides=["scheduling.max_inflight_per_engine=4"])
    limits = {
        name: arm_config(EVERY[name], base, 1, None).scheduling.max_inflight_per_engine
        for name in ("group_round_robin", "request_round_robin", "divided", "seer")
    }
    assert list(limits.values()) == [None, None, 4, 4]


def fleet(model_path: str) -> Any:
    info = SimpleNamespace(
        url="http://a:1", draft_tokens=0, kv_bytes_per_token=0, model_path=model_path
    )
    return SimpleNamespace(engines=[SimpleNamespace(info=info)])


def of_model(path: str) -> BenchConfig:
    config = load_ready_bench(gpu=False)
    return msgspec.structs.replace(config, model=type(config.model)(path=path))
