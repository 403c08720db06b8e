"""`kv_pool.backend: auto`: Mooncake where it can run, files elsewhere, and one line about it."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seer_sgl import Rollout
from seer_sgl.config import KvPoolConfig, parse
from seer_sgl.engine import opening
from seer_sgl.kvpool import backend, packages
from seer_sgl.kvpool.backend import resolved
from seer_sgl.processes import loopback

NO_LIBRARY = "mooncake cannot be loaded: libibverbs.so.1: cannot open shared object file"
REPAIR = "(`seer-sgl doctor` names the repair)"


@pytest.fixture
def unloadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mooncake cannot be loaded in this test."""
    monkeypatch.setattr(backend, "load_problem", lambda: NO_LIBRARY)


@pytest.mark.parametrize(
    ("keys", "load_problem", "refusal", "reason"),
    [
        ({}, None, None, None),
        ({}, NO_LIBRARY, None, NO_LIBRARY),
        ({"open_ports": True}, NO_LIBRARY, None, NO_LIBRARY),
        ({}, None, "an old kernel", "mooncake cannot stay on loopback: an old kernel"),
        ({"open_ports": True}, None, "an old kernel", None),  # its user leaves them to a firewall
    ],
)
def test_auto_is_mooncake_unless_it_cannot_be_loaded_or_would_open_ports(  # noqa: PLR0917
    keys: dict[str, Any],
    load_problem: str | None,
    refusal: str | None,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
    log_lines: list[str],
) -> None:
    monkeypatch.setattr(backend, "load_problem", lambda: load_problem)
    monkeypatch.setattr(loopback, "refusal", lambda: refusal)
    mooncake = KvPoolConfig(backend="mooncake", page_size=16, **keys)
    file = KvPoolConfig(backend="file", page_size=16)  # without the keys of Mooncake
    auto = msgspec.structs.replace(mooncake, backend="auto")
    assert resolved(auto) == (mooncake if reason is None else file)
    line = f"kv_pool.backend: auto: {reason}; files serve as the KV pool instead {REPAIR}"
    assert log_lines == ([] if reason is None else [line])


@pytest.mark.usefixtures("unloadable")
def test_a_named_backend_is_kept_and_logs_nothing(log_lines: list[str]) -> None:
    for name in ("none", "mooncake", "file"):
        config = parse({"kv_pool": {"backend": name}, "model": {"path": "m"}}).kv_pool
        assert resolved(config) is config
    assert not log_lines


@pytest.mark.parametrize(
    ("spec", "problem"), [(None, "is not installed"), ("found", "cannot be loaded: ")]
)
def test_a_package_that_is_missing_or_lacks_its_system_library_is_a_problem(
    spec: str | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    monkeypatch.setitem(sys.modules, "mooncake.store", None)  # its import raises ImportError
    assert (packages.load_problem() or "").startswith(f"mooncake {problem}")


@pytest.mark.usefixtures("unloadable")
async def test_a_rollout_and_its_fleet_see_the_same_backend_and_warn_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    opened = []

    class Refused(Exception):
        pass

    @contextlib.asynccontextmanager
    async def open_nothing(config: KvPoolConfig, *_: object):  # type: ignore[no-untyped-def]
        opened.append(config)
        raise Refused
        yield

    monkeypatch.setattr(opening, "open_pool", open_nothing)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 64}))
    monkeypatch.setattr("seer_sgl.rollout.inputs.tokenizer_of", lambda *_: None)
    config = {"model": {"path": str(tmp_path)}, "kv_pool": {"backend": "auto"}}
    rollout = Rollout(config, log_dir=tmp_path)
    assert rollout.config.kv_pool.backend == "file"
    with pytest.raises(Refused):
        async with rollout:
            pass
    assert [config.backend for config in opened] == ["file"]
    assert len(log_lines) == 1
