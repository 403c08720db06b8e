"""The config: every mistake gives one line with the key and its source."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from seer_sgl import Rollout, Sampling
from seer_sgl.benchmark.config import load_bench
from seer_sgl.config import (
    Config,
    ExternalEngines,
    LocalEngines,
    ModelConfig,
    RayEngines,
    bytes_of,
    load,
    parse,
    retyped,
    with_values,
)
from seer_sgl.config.engines import KEYS, LAUNCHES
from seer_sgl.errors import ConfigError

SMALL = {"model": {"path": "m"}}
SETS = ["model.path=m"]
BASE = """\
model:
  path: m
engines:
  count: 2
  sglang:
    dtype: float32
scheduling:
  chunk_tokens: 64
"""
RAY = "engines: {launch: ray"
EXTERNAL = "engines: {launch: external, urls: ['http://a:1']"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(BASE)
    return path


def test_a_file_and_overrides(base: Path) -> None:
    config = load(
        base,
        [
            "scheduling.chunk_tokens=4096",
            "sampling.stop=['a', 'b']",
            "engines.sglang.max-total-tokens=10",
        ],
    )
    assert config.scheduling.chunk_tokens == 4096
    assert config.sampling.stops() == ["a", "b"]
    assert config.engines.sglang == {"dtype": "float32", "max-total-tokens": 10}
    assert config.sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("text", "value"), [("3e-2", 0.03), ("1E-1", 0.1), ("5e-1", 0.5), ("0.25", 0.25)]
)
def test_a_number_needs_no_point(base: Path, text: str, value: float) -> None:
    assert load(base, [f"sampling.temperature={text}"]).sampling.temperature == value


def test_host_memory_without_copies_may_be_smaller_than_the_kv(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "model: {path: m}\nkv_pool: {backend: file, host_ratio: 0.5}\n"
        "engines: {sglang: {hicache_host_memory_mode: buffer_only}}"
    )
    assert load(path).kv_pool.host_ratio == 0.5


def test_token_ids_may_be_keys(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: {path: m}\nsampling: {logit_bias: {5: 1.5}}")
    assert load(path).sampling.logit_bias == {"5": 1.5}
    assert load(path, ["sampling.logit_bias={7: 2.0}"]).sampling.logit_bias == {"7": 2.0}


def test_an_empty_file_is_all_defaults_but_still_checked(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"model\.path: missing; engines\.launch: local"):
        load(path)
    assert load(path, ["model.path=x"]).model.path == "x"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "scheduling:\n  chunk_token: 3",
            r":2: scheduling\.chunk_token: unknown key; did you mean chunk_tokens\?",
        ),
        ("schedulin: {}", r":1: schedulin: unknown key; did you mean scheduling\?"),
        ("zzz: 1", r":1: zzz: unknown key; known: model, engines"),
        ("scheduling:\n\n  chunk_tokens: 0", r":3: scheduling\.chunk_tokens: expected int >= 1"),
        ("scheduling:\n  chunk_tokens: many", r":2: scheduling\.chunk_tokens: expected int, got s"),
        ("scheduling: 7", r":1: scheduling: expected object, got int"),
        ("engines:\n  launch: ray2", r":2: engines\.launch: invalid value 'ray2'"),
        ("engines: {launch: external, urls: [3]}", r":1: engines\.urls\[0\]: expected str"),
        (
            "engines:\n  launch: external\n  urls: ['a:80']",
            r":3: engines\.urls: 'a:80' is not of the form",
        ),
        (
            "engines:\n  launch: external\n  urls: ['http://a:1', 'http://a:1/']",
            r":3: engines\.urls: .* twice",
        ),
        (f"{EXTERNAL}}}\nkv_pool: {{backend: file}}", r"engines\.link: a KV pool of external"),
        (
            f"{EXTERNAL}, link: 'a:1'}}\nkv_pool: {{backend: file}}",
            r":2: kv_pool\.namespace: external engines need a new name",
        ),
        (
            f"{EXTERNAL}, link: 'a:1'}}\nkv_pool: {{backend: mooncake, namespace: x}}",
            r":2: kv_pool\.master: external engines need a Mooncake",
        ),
        (
            "kv_pool: {backend: mooncake, namespace: x}",
            r":1: kv_pool\.namespace: only for launch: external",
        ),
        (
            f"{RAY}, ray_resources: {{GPU: 0}}}}",
            r"ray_resources.*: expected float > 0",
        ),
        (f"{RAY}, ray_address: 'ray://a:1'}}", r":1: engines\.ray_address: no ray:// address"),
        (f"{RAY}, ray_address: here}}", r"'here' is not host:port, auto or local"),
        (f"{RAY}, sglang: {{nnodes: 2}}}}", r":1: engines\.sglang\.nnodes: not for launch: ray"),
        (
            "kv_pool: {backend: file, host_ratio: 0.5}",
            r":1: kv_pool\.host_ratio: at most 1 only with .*host-memory-mode: buffer_only",
        ),
        (f"{RAY}}}\nkv_pool: {{backend: auto}}", r":2: kv_pool\.backend: auto is only for"),
        (f"{RAY}}}\nkv_pool: {{backend: file}}", r":2: kv_pool\.directory: .* every engine"),
        ("engines:\n  cores: [[0]]\n  count: 2", r":2: engines\.cores: 1 lists for count: 2"),
        ("engines:\n  cores: [[9999]]", r":2: engines\.cores: no core 9999"),
        (
            "engines:\n  sglang:\n    port: 1",
            r":3: engines\.sglang\.port: the driver chooses the port",
        ),
        (
            "engines: {sglang: {pp-size: 2}}\ndraft: {scope: engine}",
            r":1: engines\.sglang\.pp-size: not with draft\.scope: engine; set none",
        ),
        (
            "engines: {sglang: {trust_remote_code: true}}",
            r":1: engines\.sglang\.trust-remote-code: use model\.trust_remote_code",
        ),
        ("engines: {base_port: 3000}", r":1: engines\.base_port: removed; local engines listen on"),
        ("5: 1", r":1: 5: unknown key"),
        (
            f"{EXTERNAL}, link: 'a:1'}}\nkv_pool: {{backend: file, namespace: x}}",
            r":2: kv_pool\.directory: backend: file needs a folder",
        ),
        (
            f"{EXTERNAL}, link: 'a:1'}}\nkv_pool: {{backend: auto, namespace: x}}",
            r":2: kv_pool\.backend: auto is only for launch: local",
        ),
        (
            "kv_pool: {backend: file, master: 'h:1'}",
            r":1: kv_pool\.master: only for backend: mooncake",
        ),
        ("kv_pool: {memory: 1}", r":1: kv_pool\.memory: expected str"),
        ("kv_pool: {ssd_path: s}", r":1: kv_pool\.ssd_path: removed; a Mooncake of your own"),
        ("kv_pool: {namespace: 2024-13-45}", "month must be in 1"),
        (
            "kv_pool: {backend: file, directory: d, open_ports: true}",
            r":1: kv_pool\.open_ports: only for backend: mooncake",
        ),
        (
            f"{RAY}}}\nkv_pool: {{backend: mooncake, open_ports: true}}",
            r":2: kv_pool\.open_ports: only for launch: local",
        ),
        ("kv_pool: {backend: mooncake, memory: 8mb}", r":1: kv_pool\.memory: 8mb is less than"),
        (
            "kv_pool: {backend: mooncake}\nengines: {sglang: {page-size: 8}}",
            r":2: engines\.sglang\.page-size: the KV pool sets it; use kv_pool\.page_size",
        ),
        ("draft: {max_draft_tokens: 65}", r":1: draft\.max_draft_tokens: expected int <= 64"),
        ("draft: {paths: 0}", r":1: draft\.paths: expected int >= 1"),
        ("draft: {memory: 1kb}", r":1: draft\.memory: 1kb is less than 1mb"),
        ("draft: {hub: 'h:1'}", r":1: draft\.hub: only for scope: fleet, not for scope: none"),
        ("draft: {scope: request, history: f}", r":1: draft\.history: needs scope: engine or"),
        (
            "draft: {scope: engine}\nengines:\n  sglang: {speculative_num_steps: 3}",
            r":3: engines\.sglang\.speculative-num-steps: drafting sets SGLang's speculative",
        ),
        (
            f"{EXTERNAL}}}\ndraft: {{scope: fleet}}",
            r":2: draft\.scope: external engines need draft\.hub",
        ),
        (
            f"{EXTERNAL}}}\ndraft: {{scope: engine, history: f}}",
            r":2: draft\.history: external engines need draft\.hub",
        ),
        (
            "engines: {exact: true, sglang: {enable_deterministic_inference: false}}",
            r":1: engines\.sglang\.enable-deterministic-inference: engines\.exact needs it",
        ),
        (
            "engines: {exact: true, sglang: {speculative-algorithm: NGRAM}}",
            r":1: engines\.sglang\.speculative-algorithm: not with engines\.exact",
        ),
        (
            "engines: {exact: true, sglang: {enable-torch-compile: true}}",
            r":1: engines\.sglang\.enable-torch-compile: not with engines\.exact",
        ),
        ("scheduling: {policy: fifo}", r":1: scheduling\.policy: invalid enum value 'fifo'"),
        ("scheduling: {policy: oracle}", r":1: scheduling\.policy: oracle needs scheduling\.len"),
        (
            "scheduling: {policy: fcfs, lengths: f}",
            r":1: scheduling\.lengths: policy: fcfs uses no lengths",
        ),
        (
            "scheduling: {policy: group_round_robin}\nkv_pool: {backend: mooncake}",
            r":2: kv_pool\.backend: policy: group_round_robin sends whole requests at once",
        ),
        (
            "scheduling:\n  policy: group_least_loaded\n  max_inflight_per_engine: 3",
            r":3: scheduling\.max_inflight_per_engine: policy: group_least_loaded sends whole",
        ),
        ("sampling:\n  temperature: -1", r":2: sampling\.temperature: expected float >= 0"),
        ("sampling:\n  top_k: 0", r":2: sampling\.top_k: must be -1"),
        ("sampling:\n  top_p: 0", r":2: sampling\.top_p: expected float > 0"),
        (
            "model: {path: m}\nsampling: {return_routed_experts: true}",
            r":2: sampling\.return_routed_experts: needs engines\.sglang\.enable-return-routed",
        ),
        ("sampling: {regex: a, ebnf: b}", r":1: sampling: only one of"),
        ("a: [1", r":1: expected ',' or ']'"),
        ("- 1", r":1: expected a mapping"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as raised:
        load(path, ["model.path=m"])
    assert str(raised.value).startswith(f"{path}:")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("scheduling.chunk_tokens", "expected key.path=value"),
        (".x=1", "expected key.path=value"),
        ("model.path.deeper=1", "path is not a section"),
        ("scheduling.chunk_tokens=-1", r"scheduling\.chunk_tokens: expected int >= 1"),
        ("scheduling.nope=1", r"scheduling\.nope: unknown key"),
    ],
)
def test_a_mistake_in_an_override_is_named(base: Path, override: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as raised:
        load(base, [override])
    assert f"--set {override.partition('=')[0]}" in str(raised.value)


KEYS_OF_OTHERS: dict[str, dict[str, Any]] = {
    "local": {
        "urls": ["http://a"],
        "link": "a:1",
        "ray_address": "auto",
        "ray_resources": {"A": 1},
    },
    "ray": {"urls": ["http://a"], "link": "a:1", "cores": "auto"},
    "external": {"count": 2, "cores": [[0]], "environment": {"A": "b"}, "ray_address": "auto"},
}


@pytest.mark.parametrize(
    ("launch", "key"), [(launch, key) for launch, keys in KEYS_OF_OTHERS.items() for key in keys]
)
def test_a_key_of_another_launch_is_named_with_its_own(
    tmp_path: Path, launch: str, key: str
) -> None:
    only = f"engines.{key}: only for launch: {' or '.join(KEYS[key])}; null unsets it"
    assert launch not in KEYS[key]
    path, value = tmp_path / "c.yaml", json.dumps(KEYS_OF_OTHERS[launch][key])
    path.write_text(f"engines:\n  launch: {launch}\n  {key}: {value}")
    with pytest.raises(ConfigError) as in_file:
        load(path, SETS)
    assert str(in_file.value) == f"{path}:3: {only}"
    path.write_text("")
    chosen = [] if launch == "local" else [f"engines.launch={launch}"]
    with pytest.raises(ConfigError) as in_option:
        load(path, [*SETS, *chosen, f"engines.{key}={value}"])
    assert str(in_option.value).startswith(f"--set engines.{key}=")
    assert str(in_option.value).endswith(f": {only}")


def test_a_file_for_one_launch_serves_another_once_its_keys_are_unset(base: Path) -> None:
    there = ["engines.launch=external", "engines.urls=['http://a:1']"]
    for unset in ("null", "1"):
        config = load(base, [*there, f"engines.count={unset}"])
        assert config.engines == ExternalEngines(urls=["http://a:1"], sglang={"dtype": "float32"})
    assert load(base, ["engines.urls=[]"]) == load(base)


def test_a_hint_names_keys_of_every_launch() -> None:
    for launch in LAUNCHES:
        with pytest.raises(ConfigError, match=r"engines\.url: unknown key; did you mean urls\?"):
            parse({"engines": {"launch": launch, "url": "http://a:1"}})


def test_a_config_of_python_is_read_back_from_its_plain_values() -> None:
    for engines in (LocalEngines(count=2), RayEngines(), ExternalEngines(urls=["http://a:1"])):
        config = Config(model=ModelConfig(path="m"), engines=engines)
        plain = msgspec.to_builtins(config)
        assert plain["engines"]["launch"] == engines.launch
        assert parse(plain) == config


def test_values_of_wrong_types_in_a_config_of_python_are_named() -> None:
    made = Config(model=ModelConfig(path="m"), sampling=Sampling(top_p=0.5))
    assert retyped(made) == made
    for key, value in (
        ("sampling.max_new_tokens", 20.0),
        ("sampling.temperature", object()),
        ("model.path", object()),
        ("model.path", b"m"),
    ):
        wrong = with_values(made, {key: value})
        with pytest.raises(ConfigError, match=f"^{key}: expected "):
            Rollout(wrong)
    with pytest.raises(ConfigError, match="a config: expected a mapping, got int"):
        Rollout(5)  # type: ignore[arg-type]


def test_paths_and_numbers_of_numpy_in_a_config_of_python_are_taken() -> None:
    values: dict[str, tuple[Any, Any]] = {
        "model.path": (Path("/m"), "/m"),
        "rollout.journal": (Path("j"), "j"),
        "sampling.temperature": (np.float32(0.5), 0.5),
        "sampling.max_new_tokens": (np.int64(20), 20),
        "engines.sglang": ({"tp-size": np.int64(2)}, {"tp-size": 2}),
    }
    made = with_values(Config(), {key: given for key, (given, _) in values.items()})
    read = with_values(Config(), {key: taken for key, (_, taken) in values.items()})
    assert retyped(made) == read
    assert type(retyped(made).sampling.temperature) is float


def test_the_shipped_configs_are_valid() -> None:
    paths = set(Path("configs").glob("*.yaml"))
    benchmarks = set(Path("configs").glob("bench-*.yaml"))
    assert len(benchmarks) == 2 < len(paths)
    for path in paths - benchmarks:
        assert isinstance(load(path), Config)
    for path in benchmarks:
        assert isinstance(load_bench(path), Config)


@pytest.mark.parametrize(
    ("launch", "draft"),
    [
        ({}, {"scope": "fleet", "history": "f"}),
        ({}, {"scope": "fleet", "hub": "h:1"}),
        ({"link": "a:1"}, {"scope": "fleet", "hub": "h:1"}),
        ({"link": None}, {"scope": "fleet", "hub": "h:1"}),
        ({"link": None}, {"scope": "engine"}),
    ],
)
def test_drafting_that_can_work_is_accepted(
    launch: dict[str, str | None], draft: dict[str, str]
) -> None:
    external = {"launch": "external", "urls": ["http://a:1"], **launch}
    engines = external if launch else {}
    config = parse({"model": {"path": "m"}, "engines": engines, "draft": draft})
    assert bytes_of(config.draft.memory) == 1 << 30


def test_the_limit_of_a_response_has_two_names(tmp_path: Path) -> None:
    for name in ("max_new_tokens", "max_response_len"):
        assert parse({**SMALL, "sampling": {name: 7}}).sampling.max_new_tokens == 7
        with pytest.raises(ConfigError, match=r"^--set sampling\.\w+=0: sampling\.max_new_"):
            load(None, [*SETS, f"sampling.{name}=0"])
    with pytest.raises(ConfigError, match=r"^sampling: max_new_tokens and max_response_len"):
        parse({**SMALL, "sampling": {"max_new_tokens": 7, "max_response_len": 7}})
