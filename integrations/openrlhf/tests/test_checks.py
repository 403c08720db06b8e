"""What is asked of the server before a training starts: each refusal is one line."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from fake_seer_sgl import COMMAND
from seer_openrlhf.checks import ServeError, require_server
from seer_openrlhf.flags import SeerFlags
from seer_openrlhf.ports import free_port
from seer_openrlhf.served import served

TOKEN, ADMIN = "SEER_SGL_SERVER_KEY", "SEER_SGL_ADMIN_KEY"

Serve = Callable[..., SeerFlags]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server in a mode, with tokens, which are then taken away; returns the flags."""
    monkeypatch.chdir(tmp_path)
    for name in (TOKEN, ADMIN):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as stack:

        def start(mode: str = "ready", **tokens: str) -> SeerFlags:
            config = tmp_path / "config"
            config.write_text(mode)
            flags = SeerFlags(config=str(config), command=COMMAND, timeout_s=60)
            os.environ.update(tokens)
            flags = replace(flags, url=stack.enter_context(served(flags)))
            for name in tokens:
                del os.environ[name]
            return flags

        yield start


def refusal(flags: SeerFlags) -> str:
    with pytest.raises(ServeError) as caught:
        require_server(flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("demanded", "given"),
    [
        ({}, {}),
        ({TOKEN: "t"}, {TOKEN: "t"}),
        ({TOKEN: "t", ADMIN: "a"}, {TOKEN: "t", "MINE": "a"}),
    ],
)
def test_the_right_tokens_pass(
    demanded: dict[str, str],
    given: dict[str, str],
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = serve(**demanded)
    for name, token in given.items():
        monkeypatch.setenv(name, token)
    require_server(replace(flags, admin_token_env="MINE") if "MINE" in given else flags)


def test_a_server_that_is_not_there_is_named() -> None:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    line = refusal(SeerFlags(url=url))
    assert line.startswith(f"--seer.url: {url} is not ready: ") and "refused" in line


def test_a_server_without_rollouts_is_no_seer_sgl_server(serve: Serve) -> None:
    flags = serve("plain")
    assert refusal(flags) == (
        f"--seer.url: {flags.url} is no seer-sgl server: /rollouts: it answers 404"
    )


@pytest.mark.parametrize(("given", "state"), [(None, "not set"), ("x", "not the right one")])
@pytest.mark.parametrize(
    "token",
    [(TOKEN, "--seer.token_env", "/rollouts"), (ADMIN, "--seer.admin_token_env", "/workers")],
)
def test_a_missing_or_wrong_token_is_named_by_its_variable(
    token: tuple[str, str, str],
    given: str | None,
    state: str,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, flag, path = token
    flags = serve(**{name: "t"})
    if given:
        monkeypatch.setenv(name, given)
    assert refusal(flags) == f"{flag}: {name} is {state}: {flags.url} demands a token for {path}"
