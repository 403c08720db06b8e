"""Hostile config files and values: each is refused quickly with one line and status 2."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from seer_sgl.benchmark.config import load_bench
from seer_sgl.config import Config, LocalEngines, load, parse
from seer_sgl.config.addresses import is_address, is_url
from seer_sgl.config.engines import KEYS, FlagValue
from seer_sgl.config.loader import MAX_BYTES, MAX_DEPTH, MAX_NODES
from seer_sgl.errors import ConfigError
from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.source import load_settings
from seer_sgl.sim.sweep import parse_sweep

BOMB = "\n".join(
    ["a0: &a0 [1]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
)
NINES = "9" * 400
EXTERNAL = "engines: {launch: external, urls: ['http://a:1']}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


def refused(path: Path, *overrides: str) -> str:
    """Returns the one-line error message of an invalid config."""
    with pytest.raises(ConfigError) as raised:
        load(path, overrides)
    assert str(raised.value).isprintable()
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("engines: &a {sglang: *a}", r":1: the alias *a refers to itself"),
        ("engines: {urls: &a [*a]}", r":1: the alias *a refers to itself"),
        (BOMB, f"more than {MAX_NODES} values, with its aliases written out"),
        ("a: " + "[" * 5000 + "]" * 5000, f":1: nested deeper than {MAX_DEPTH} levels"),
        ("a: " + "{b: " * 5000 + "}" * 5000, f":1: nested deeper than {MAX_DEPTH} levels"),
        ("a: 1" + ":1" * 200_000, ":1: a number of 400001 characters"),
        (f"a: 0x{'F' * 5000}", ":1: a number of 5002 characters"),
        (f"? 0x{'F' * 5000}\n: 1", ":1: a number of 5002 characters"),
        (f"a: 1{':1' * 200}.5", "int too large to convert to float"),
        ("a: !!timestamp soon", ""),
        ("a: !!int ''", ""),
        ("a: !!bool maybe", ""),
        ("a: \0", "special characters are not allowed"),
        ("server:\n  port: 1\n  port: 2", ":3: the key port is there twice"),
        ("a: *nobody", ":1: found undefined alias"),
        ("a: !!python/name:os.system", ":1: could not determine a constructor"),
        (f"kv_pool: {{backend: mooncake, memory: {NINES}gb}}", ":1: kv_pool.memory: '999"),
        (f"draft: {{scope: fleet, memory: {NINES}gb}}", ":1: draft.memory: '999"),
        ("draft: {scope: fleet, memory: 1.2.3gb}", "'1.2.3gb' is not a size such as"),
        ("draft: {scope: fleet, memory: 2000000tb}", "'2000000tb' is not a size such as"),
        (f"rollout: {{max_prompts: {NINES}}}", ":1: rollout.max_prompts: expected int <= "),
        ("rollout: {n_samples_per_prompt: 9000000000}", "n_samples_per_prompt: expected int <="),
        ("engines: {count: 100000}", ":1: engines.count: expected int <= 1024"),
        ("engines: {stall_timeout_s: .inf}", ":1: engines.stall_timeout_s: must be finite"),
        ("engines: {sglang: {mem-fraction-static: .nan}}", "mem-fraction-static: must be finite"),
        ("engines: {sglang: {x: [1, -.inf]}}", ":1: engines.sglang.x[1]: must be finite"),
        ("engines: {cores: [[-1]]}", ":1: engines.cores[0][0]: expected int >= 0"),
        (f"engines: {{cores: [[{NINES}]]}}", "engines.cores[0][0]: expected int <= "),
        ("engines: {cores: [[]]}", ":1: engines.cores: an engine without a core"),
        ("engines: {environment: {A=B: c}}", "'A=B' cannot be the name of a variable"),
        ('engines: {environment: {A: "x\\0"}}', "engines.environment.A: text with a NUL"),
        ('model: {path: "x\\0"}', ":1: model.path: text with a NUL"),
        ('rollout: {prompts: "\\0"}', ":1: rollout.prompts: text with a NUL"),
        ('sampling: {stop: ["\\uD800"]}', ":1: sampling.stop[0]: text with a NUL"),
        ("sampling: {logit_bias: {5: .nan}}", ":1: sampling.logit_bias.5: must be finite"),
        ("sampling: {logit_bias: {five: 1}}", ":1: sampling.logit_bias: 'five' is not a token id"),
        ("sampling: {logit_bias: {5000000000: 1}}", "'5000000000' is not a token id"),
        ("sampling: {top_k: 3000000000}", ":1: sampling.top_k: expected int <= 2147483647"),
        ("sampling: {stop_token_ids: [3000000000]}", "stop_token_ids[0]: expected int <="),
        ('"two\\nlines": 1', ":1: two\\nlines: unknown key"),
    ],
)  # fmt: skip
def test_a_hostile_file_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = written(tmp_path, text)
    line = refused(path)
    assert line.startswith(f"{path}:")
    assert complaint in line


def test_a_file_without_end_is_refused() -> None:
    assert refused(Path("/dev/zero")) == f"/dev/zero: larger than {MAX_BYTES} bytes"


def test_aliases_within_bounds_are_what_they_name(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "model: {path: m}\nengines:\n  environment: &e {A: &v x, B: *v}\n  sglang: {<<: *e, C: y}",
    )
    config = load(path)
    assert isinstance(config.engines, LocalEngines)
    assert config.engines.environment == {"A": "x", "B": "x"}
    assert config.engines.sglang == {"A": "x", "B": "x", "C": "y"}


@pytest.mark.parametrize("value", ["[" * 5000, "&a [*a]", "!!int ''", f"0x{'F' * 5000}", "\0"])
def test_a_hostile_override_is_one_line(tmp_path: Path, value: str) -> None:
    line = refused(written(tmp_path, ""), f"engines.count={value}")
    assert line.startswith("--set engines.count: ")
    assert "the value is not valid YAML" in line


URLS = {
    "http://a:1": True,
    "https://a.b-c.example:65535/": True,
    "http://10.0.0.1": True,
    "http://[::1]:30000": True,
    "http://a:0": False,
    "http://a:65536": False,
    f"http://a:{NINES}": False,
    "http://a:port": False,
    "http://a:": False,
    "http://:1": False,
    "http://..:1": False,
    "http://-a:1": False,
    f"http://{'a' * 64}:1": False,
    f"http://{'a.' * 200}b:1": False,
    "http://[::1": False,
    "http://[:::]:1": False,
    "http://a b:1": False,
    "http://a:1/path": False,
    "http://a:1?x=1": False,
    "http://a:1#x": False,
    "http://a\\b:1": False,
    "ftp://a:1": False,
}


@pytest.mark.parametrize("url", URLS)
def test_only_a_url_that_can_be_is_accepted(url: str) -> None:
    assert is_url(url) == URLS[url]
    address = url.removeprefix("https://").removeprefix("http://")
    if "[" not in url and "://a" in url:
        assert is_address(address) == (URLS[url] and ":" in address and not url.endswith("/"))


@pytest.mark.parametrize("key", ["engines.link", "kv_pool.master", "draft.hub"])
@pytest.mark.parametrize("address", ["h:0", "h:70000", f"h:{NINES}", "..:1", "h", "u:p@h:1"])
def test_an_address_that_cannot_be_is_refused(tmp_path: Path, key: str, address: str) -> None:
    needs = ["kv_pool={backend: mooncake, namespace: n, master: 'a:1'}", "draft.scope=fleet"]
    line = refused(written(tmp_path, EXTERNAL), "engines.link=a:1", *needs, f"{key}={address}")
    assert f"{key}: " in line
    assert "is not of the form host:port" in line


SECRET = "hunter2"
WITH_USER = f"http://me:{SECRET}@a:1"


@pytest.mark.parametrize(
    "override",
    [
        f"engines.urls=['{WITH_USER}']",
        f"model.path=redis://me:{SECRET}@a",
        f"engines.sglang.otlp-traces-endpoint={WITH_USER}",
        f"kv_pool.directory=s3://{SECRET}@bucket",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(tmp_path: Path, override: str) -> None:
    line = refused(written(tmp_path, EXTERNAL), override)
    assert "a URL with a user name or password" in line
    assert SECRET not in line


def test_other_commands_read_within_the_same_bounds(tmp_path: Path) -> None:
    path = written(tmp_path, BOMB)
    for read in (load_bench, load_settings):
        with pytest.raises(ConfigError, match="with its aliases written out"):
            read(path)
    for override in (
        "engine.bandwidth_gb_s=.inf",
        f"engine.count={NINES}",
        "workload.groups=9000000000",
        "workload={groups: 10000000, n_samples_per_prompt: 1000}",
        f"workload.lengths.max={NINES}",
        "engine.tflops=nan",
    ):
        with pytest.raises(ConfigError, match=r"engine\.|workload\."):
            load_settings(overrides=[override])
    for value in (".nan", "[" * 5000, f"0x{'F' * 5000}"):
        with pytest.raises(ConfigError, match="a value is not valid YAML, a date or nan"):
            parse_sweep(f"engine.tflops={value}")


def test_a_mapping_that_contains_itself_is_refused() -> None:
    tree: dict[str, Any] = {}
    tree["engines"] = tree
    with pytest.raises(ConfigError, match=r"^engines\.engines: unknown key"):
        parse(tree)
    with pytest.raises(ConfigError, match="must be finite"):
        parse({"model": {"path": "m"}, "sampling": {"logit_bias": {"5": float("nan")}}})


scalars: st.SearchStrategy[FlagValue | None] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["4gb", "http://a:1", "h:1", "fleet", "mooncake", "external", "ray", NINES + "gb"]
    ),
)
sections = sorted({*Config.__struct_fields__, *SimConfig.__struct_fields__, "bench"})
keys = st.sampled_from(
    sorted(
        name
        for section in (Config(), SimConfig())
        for part in section.__struct_fields__
        for name in {"launch", *KEYS, *getattr(section, part).__struct_fields__}
    )
)
trees = st.dictionaries(
    st.sampled_from(sections),
    st.one_of(
        scalars,
        st.dictionaries(
            st.one_of(keys, st.text(max_size=4)),
            st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(keys, scalars)),
            max_size=4,
        ),
    ),
    max_size=3,
)
texts = st.one_of(
    trees.map(yaml.safe_dump),
    st.lists(st.sampled_from([*"a:[]{}&*!|>-?,'\"\n 1", "!!int ", "<<: ", "&a ", "*a"])).map(
        "".join
    ),
    st.text(),
)


@given(texts)
@example("? [a]\n: b")
@example("a: &a\n  <<: *a")
def test_any_text_is_a_config_or_a_config_error(tmp_path_factory: Any, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    for read in (load, load_bench, load_settings):
        try:
            read(path)
        except ConfigError as error:
            assert str(error).isprintable()


@given(st.one_of(keys, st.text(max_size=10)), texts)
def test_any_override_is_a_config_or_a_config_error(key: str, text: str) -> None:
    for section in sections:
        try:
            load(None, [f"{section}.{key}={text}"])
        except ConfigError as error:
            assert str(error).isprintable()
