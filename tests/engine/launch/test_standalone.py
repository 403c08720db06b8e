"""`seer-sgl engine`: what it makes of its flags and of a fleet's config."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.config import KvPoolConfig, LocalEngines, load
from seer_sgl.engine.launch import exact, standalone
from seer_sgl.engine.launch.process import SERVER_MODULE
from seer_sgl.engine.launch.server import Place, place_flags
from seer_sgl.engine.launch.standalone import exec_engine
from seer_sgl.errors import ConfigError
from seer_sgl.kvpool.hicache import FILE_DIRECTORY, NAMESPACE, Pool
from seer_sgl.link.contract import ALGORITHM, API_KEY, DRAFT, HUB_URL, LINK_TOKEN, LINK_URL
from seer_sgl.processes import loopback
from seer_sgl.processes.child import free_port

FLEET = """\
model: {{path: {model}}}
engines:
  launch: external
  urls: ["http://127.0.0.1:1"]
  link: 127.0.0.1:7700
  api_key: K
  sglang: {{tp-size: 2}}
kv_pool: {{backend: file, directory: {pages}, page_size: 32, namespace: run-7}}
"""


class Replaced(Exception):
    """The process would be another one now."""


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs exec_engine; returns the server's flags and its environment."""
    seen: list[Any] = []

    def execve(_: str, command: list[str], environment: dict[str, str]) -> None:
        seen.extend((command, environment))
        raise Replaced

    def run(*arguments: str) -> tuple[list[str], dict[str, str]]:
        with pytest.raises(Replaced):
            exec_engine([*arguments, "--port", str(free_port())])
        command, environment = seen[-2:]
        assert command[1:3] == ["-m", SERVER_MODULE]
        return command[3:-2], environment

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv(LINK_TOKEN, "secret")
    return run


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.format(model=model, pages=tmp_path / "pages"))
    return path


def value_of(flags: list[str], name: str) -> str:
    """The last value of a flag, which is the one SGLang takes."""
    return flags[len(flags) - flags[::-1].index(name)]


@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_the_model_is_trusted_by_engines_as_by_the_driver(
    become: Any, fleet: Path, trusted: bool
) -> None:
    text, key = fleet.read_text(), f", trust_remote_code: {str(trusted).lower()}}}"
    fleet.write_text(text.replace("}", key, 1))
    flags, _ = become("--fleet", str(fleet))
    assert ("--trust-remote-code" in flags) == trusted
    local = load(fleet).fleet._replace(engines=LocalEngines())
    assert ("trust-remote-code" in place_flags(local, Place("127.0.0.1", 1))) == trusted


def test_the_log_of_an_engine_has_no_lines_of_polls_unless_the_config_says_so(fleet: Path) -> None:
    key, local = "uvicorn-access-log-exclude-prefixes", load(fleet).fleet
    default, own = LocalEngines(), LocalEngines(sglang={key: ["/health"]})
    for engines, wanted in ((default, ["/v1/loads", "/model_info"]), (own, ["/health"])):
        flags = place_flags(local._replace(engines=engines), Place("127.0.0.1", 1))
        assert flags[key] == wanted


def test_an_engine_of_a_fleet_takes_what_its_config_says(
    become: Any, fleet: Path, tmp_path: Path
) -> None:
    flags, environment = become("--fleet", str(fleet), "--host", "127.0.0.2")
    assert value_of(flags, "--model-path") == str(tmp_path / "model")
    assert value_of(flags, "--tp-size") == "2"
    assert value_of(flags, "--page-size") == "32"
    assert value_of(flags, "--hicache-storage-backend") == "file"
    assert json.loads(value_of(flags, "--hicache-storage-backend-extra-config"))
    assert "K" not in flags, "command lines are for everybody to read"
    assert "--fleet" not in flags
    assert str(fleet) not in flags
    wanted = {
        API_KEY: "K",
        LINK_URL: "http://127.0.0.1:7700/link",
        LINK_TOKEN: "secret",
        NAMESPACE: "run-7",
        FILE_DIRECTORY: str(tmp_path / "pages"),
    }
    assert environment.items() >= wanted.items()


def test_the_flags_of_the_command_line_win(become: Any, fleet: Path) -> None:
    flags, _ = become(f"--fleet={fleet}", "--tp-size", "1")
    assert value_of(flags, "--tp-size") == "1"


@pytest.mark.parametrize(("size", "count"), [("tp-size", 1), ("dp-size", 0)])
def test_each_copy_of_the_model_has_a_port_of_its_own_for_nccl(
    become: Any, fleet: Path, size: str, count: int
) -> None:
    fleet.write_text(fleet.read_text().replace("tp-size", size))
    flags, _ = become("--fleet", str(fleet))
    assert flags.count("--nccl-port") == count


def test_an_engine_of_a_fleet_drafts_as_its_config_says(become: Any, fleet: Path) -> None:
    fleet.write_text(fleet.read_text() + "draft: {scope: fleet, hub: '127.0.0.1:7701'}\n")
    flags, environment = become("--fleet", str(fleet))
    assert value_of(flags, "--speculative-algorithm") == ALGORITHM
    assert value_of(flags, "--speculative-num-draft-tokens") == "17"
    assert environment[HUB_URL] == "http://127.0.0.1:7701/link"
    assert json.loads(environment[DRAFT])["scope"] == "fleet"


def test_an_exact_engine_of_a_fleet_verifies_the_root_alone_on_a_gpu(
    become: Any, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.write_text(fleet.read_text().replace("sglang:", "exact: true\n  sglang:"))
    flags, _ = become("--fleet", str(fleet))
    assert "--enable-deterministic-inference" in flags
    assert "--speculative-algorithm" not in flags
    monkeypatch.setattr(standalone, "gpu_visible", lambda: True)
    monkeypatch.setattr(exact, "hopper_visible", lambda: False)
    flags, _ = become("--fleet", str(fleet))
    assert value_of(flags, "--attention-backend") == "triton"
    assert value_of(flags, "--speculative-num-draft-tokens") == "1"


@pytest.mark.parametrize(("host", "confined"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_ports_of_the_pool_are_open_to_other_machines_where_the_engine_is(
    become: Any, fleet: Path, monkeypatch: pytest.MonkeyPatch, host: str, confined: bool
) -> None:
    @asynccontextmanager
    async def opened(config: KvPoolConfig, *_: Any) -> AsyncIterator[Pool]:
        yield Pool(config, "10.0.0.9:50051")

    monkeypatch.setattr(standalone, "open_pool", opened)
    pool = "kv_pool: {backend: mooncake, master: '10.0.0.9:50051', namespace: run-7}\n"
    fleet.write_text(fleet.read_text().partition("kv_pool:")[0] + pool)
    _, environment = become("--fleet", str(fleet), "--host", host)
    assert (loopback.ONLY in environment) is confined


def test_an_engine_of_its_own_has_no_pool_and_no_link(become: Any, fleet: Path) -> None:
    flags, environment = become("--model-path", str(fleet.parent / "model"))
    assert "--hicache-storage-backend" not in flags
    assert not environment.keys() & {LINK_URL, NAMESPACE, API_KEY}
    assert value_of(flags, "--host") == "127.0.0.1", "a --config of SGLang's cannot change that"


@pytest.mark.parametrize(
    ("change", "flags", "complaint"),
    [
        (("", ""), [], r"engines\.link: set SEER_SGL_LINK_TOKEN"),
        (
            ("kv_pool:", "draft: {scope: fleet, hub: 'h:1'}\nkv_pool:"),
            [],
            r"draft\.hub: set SEER_SGL_LINK_TOKEN",
        ),
        (("  link: 127.0.0.1:7700\n", ""), [], r"engines\.link: a KV pool of external engines"),
        (("launch: external", "launch: local"), [], r"engines\.urls: only for"),
        (
            ("backend: file", "backend: mooncake, master: '127.0.0.1:9'"),
            [],
            r"kv_pool\.master: nothing answers at 127\.0\.0\.1:9",
        ),
        (("api_key: K", ""), ["--host", "10.0.0.1"], "--host 10.0.0.1 listens beyond loopback"),
        (("api_key: K", ""), ["--host="], "--host  listens beyond loopback"),
        (("api_key: K", ""), ["--host=::", "--api-key="], "--host :: listens beyond loopback"),
        (("api_key: K", "api_key: ''"), [], r"engines\.api_key: an empty token"),
        (("path: ", "path: /nowhere"), [], r"model\.path: /nowhere.* does not exist"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_in_one_line(
    fleet: Path,
    change: tuple[str, str],
    flags: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(API_KEY, "")  # SGLang takes an empty key for none
    monkeypatch.delenv(LINK_TOKEN, raising=False)
    if "LINK_TOKEN" not in complaint:
        monkeypatch.setenv(LINK_TOKEN, "secret")
    fleet.write_text(fleet.read_text().replace(*change))
    with pytest.raises(ConfigError, match=complaint) as raised:
        exec_engine(["--fleet", str(fleet), *flags])
    assert "\n" not in str(raised.value)


def test_a_fleet_is_one_config_whose_engines_are_started_elsewhere(
    fleet: Path, tmp_path: Path
) -> None:
    path = tmp_path / "local.yaml"
    path.write_text("model: {path: m}")
    with pytest.raises(ConfigError, match=r"--fleet: .*launch: local"):
        exec_engine(["--fleet", str(path)])
    with pytest.raises(ConfigError, match="--fleet needs a config"):
        exec_engine(["--fleet"])
    with pytest.raises(ConfigError, match="--fleet is given twice"):
        exec_engine(["--fleet", str(fleet), "--fleet", str(fleet)])
