"""The work of `seer-sgl serve`, from start to end."""

import asyncio
import contextlib
import gc
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.config import parse
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import API_KEY
from seer_sgl.server.command import ADMIN_KEY, SERVER_KEY, serve, with_keys
from tests.fake_sglang import FakeSGLang, serving
from tests.support.waiting import until

from .helpers import served


async def test_the_end_unfreezes_what_the_start_froze(tmp_path: Path) -> None:
    """Extension modules print warnings at exit about their objects that are not collected."""
    threshold = gc.get_threshold()
    async with serving(FakeSGLang()) as url:
        engines = {"launch": "external", "urls": [url]}
        config = parse({"engines": engines, "server": {"port": 0}})
        work = asyncio.create_task(serve(config, tmp_path))
        await until(lambda: gc.get_freeze_count() > 0)
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
    gc.set_threshold(*threshold)
    assert gc.get_freeze_count() == 0


async def test_a_port_that_was_taken_while_the_engines_started_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^server\.port: .*{port}.*in use"):
            async with served(FakeSGLang(), server={"port": port}):
                pass


async def test_an_address_of_another_machine_is_refused_before_the_engines_start(
    tmp_path: Path,
) -> None:
    """Also for a port that the system chooses."""
    server = {"host": "192.0.2.1", "port": 0, "api_key": "a"}
    engines = {"launch": "external", "urls": ["http://127.0.0.1:1"]}
    with pytest.raises(ConfigError, match=r"^server\.port: 192\.0\.2\.1:0: Cannot assign"):
        await serve(parse({"engines": engines, "server": server}), tmp_path)


@pytest.mark.parametrize(("launch", "key"), [("local", None), ("ray", None), ("local", "")])
def test_started_engines_of_a_server_with_a_token_get_a_key(
    monkeypatch: pytest.MonkeyPatch, launch: str, key: str | None
) -> None:
    monkeypatch.setenv(ADMIN_KEY, "secret")
    if key is not None:
        monkeypatch.setenv(API_KEY, key)
    config = with_keys(parse({"model": {"path": "m"}, "engines": {"launch": launch}}))
    assert config.server.admin_api_key == "secret"
    assert len(config.engines.api_key or "") > 30
    assert ADMIN_KEY not in os.environ, "engines do not inherit it"


@pytest.mark.parametrize("variable", [ADMIN_KEY, SERVER_KEY])
@pytest.mark.parametrize("token", ["", " ", "\udcff", "a\nb"])
def test_a_token_of_the_environment_that_opens_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, token: str
) -> None:
    monkeypatch.setenv(SERVER_KEY, "strong")
    monkeypatch.setenv(variable, token)
    with pytest.raises(ConfigError, match=f"^{variable}: "):
        with_keys(parse({"model": {"path": "m"}}))


@pytest.mark.parametrize(
    ("server", "engines"),
    [
        ({}, {"launch": "local"}),
        ({"api_key": "a"}, {"launch": "local", "api_key": "theirs"}),
        ({"api_key": "a"}, {"launch": "external", "urls": ["http://127.0.0.1:1"]}),
    ],
)
def test_other_engines_keep_the_key_that_they_have(
    server: dict[str, Any], engines: dict[str, Any]
) -> None:
    config = with_keys(parse({"model": {"path": "m"}, "server": server, "engines": engines}))
    assert config.engines.api_key == engines.get("api_key")
