"""What comes before Ray itself: a missing package, addresses that do not answer, and keys."""

import sys

import pytest

from seer_sgl.config import EnginesConfig
from seer_sgl.engine.launch.ray_cluster import Cluster, open_cluster, with_key
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import API_KEY
from seer_sgl.processes import free_port


async def opened(config: EnginesConfig) -> None:
    async with open_cluster(config):
        pass


async def test_a_missing_ray_is_one_line_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"not installed: pip install 'seer-sgl\[ray\]'$"):
        await opened(EnginesConfig(launch="ray"))


async def test_an_address_where_nothing_answers_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=f"^engines.ray_address: {address}: Connection refused$"):
        await opened(EnginesConfig(launch="ray", ray_address=address))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"^engines.ray_address: {address}: Connection refused$"):
        await opened(EnginesConfig(launch="ray"))


@pytest.mark.parametrize(
    ("node", "own", "environment", "key"),
    [
        ("127.0.0.1", None, None, None),
        ("10.0.0.1", None, None, "new"),
        ("10.0.0.1", None, "exported", "exported"),
        ("10.0.0.1", "own", "exported", "own"),
        ("127.0.0.1", None, "exported", "exported"),
    ],
)
def test_servers_beyond_loopback_always_have_a_key(
    node: str,
    own: str | None,
    environment: str | None,
    key: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(API_KEY, raising=False)
    if environment is not None:
        monkeypatch.setenv(API_KEY, environment)
    config = EnginesConfig(launch="ray", api_key=own)
    assert with_key(config, Cluster(node, {"CPU": 1}), "new").api_key == key
