"""The config in a report: without secrets, and otherwise unchanged."""

import json

import msgspec
import pytest

from seer_sgl.benchmark.config import load_ready_bench
from seer_sgl.config import load
from seer_sgl.config.masking import MASK, is_secret, masked, without_userinfo
from seer_sgl.errors import ConfigError


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "api-key",
        "apikey",
        "api-keys",
        "admin_api_key",
        "AWS_SECRET_ACCESS_KEY",
        "ssl-keyfile-password",
        "secretAccessKey",
        "DB_PASSWORDS",
        "token",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


def test_names_that_only_look_like_it() -> None:
    harmless = ("tokenizer-path", "max-total-tokens", "chunk_tokens", "ssl-keyfile", "monitor")
    assert not any(map(is_secret, (*harmless, "keep-alive")))


NESTED = {"a": [{"secret_key": "hidden5"}], "b": json.dumps({"password": "hidden6"})}
HIDDEN = [
    "engines.environment.HF_TOKEN=hidden1",
    "engines.environment.HOME=hidden2",
    "engines.api_key=hidden3",
    "engines.sglang.admin-api-key=hidden4",
    "engines.sglang.ssl_keyfile_password=40414243",
    f"engines.sglang.extra='{json.dumps(NESTED)}'",
    "engines.sglang.broken='{\"password\": hidden7'",
]


def test_a_report_shows_no_secret_and_all_the_rest() -> None:
    kept = ["engines.sglang.max-total-tokens=9", "sampling.stop_token_ids=[7]"]
    config = msgspec.to_builtins(load_ready_bench(gpu=False, overrides=[*HIDDEN, *kept]))
    shown = masked(config)
    text = json.dumps(shown)
    hidden = [*(f"hidden{i}" for i in range(1, 8)), "4041"]
    assert [each for each in hidden if each in text] == []
    assert shown["engines"]["environment"].keys() == config["engines"]["environment"].keys()
    assert json.loads(shown["engines"]["sglang"]["extra"])["a"] == [{"secret_key": MASK}]
    assert shown["engines"]["sglang"]["max-total-tokens"] == 9
    assert shown["sampling"] == config["sampling"]
    plain = msgspec.to_builtins(load_ready_bench(gpu=False, overrides=kept))
    plain["engines"]["environment"] = {}
    assert masked(plain) == plain


@pytest.mark.parametrize(
    "override",
    [
        "engines.environment.A=[hidden]",
        "engines.environment=hidden",
        "engines={api_key: hidden, lunch: local}",
        "engines.api_key=[hidden]",
        "engines.api_key=[hidden",
        "engines.api_key:hidden",
        "engines.sglang.hf-token={a: hidden}",
        "engines.urls=http://hidden@a:1",
        "engines.api-key=hidden",
        "engines.hf-token=hidden",
    ],
)
def test_a_complaint_repeats_no_secret(override: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(None, [override])
    assert str(raised.value).startswith("--set engines")
    assert "hidden" not in str(raised.value)


def test_urls_in_complaints_lose_their_passwords() -> None:
    assert (
        without_userinfo("plain=http://me:pw@a:1,http://b:2")
        == f"plain=http://{MASK}@a:1,http://b:2"
    )
