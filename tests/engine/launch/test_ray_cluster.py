"""What comes before Ray itself: a missing package, addresses that do not answer, and keys."""

import sys

import pytest

from seer_sgl.config import Config, RayEngines
from seer_sgl.engine.launch.ray_cluster import cluster_site, open_cluster
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import API_KEY
from seer_sgl.processes.child import free_port


async def opened(config: RayEngines) -> None:
    async with open_cluster(Config(engines=config).fleet, config):
        pass


async def test_a_missing_ray_is_one_line_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"not installed: pip install 'seer-sgl\[ray\]'$"):
        await opened(RayEngines())


async def test_an_address_where_nothing_answers_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=f"^engines.ray_address: {address}: Connection refused$"):
        await opened(RayEngines(ray_address=address))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"^engines.ray_address: {address}: Connection refused$"):
        await opened(RayEngines())


@pytest.mark.parametrize(
    ("node", "own", "environment", "key"),
    [
        ("127.0.0.1", None, None, None),
        ("10.0.0.1", None, "exported", "exported"),
        ("10.0.0.1", "own", "exported", "own"),
        ("127.0.0.1", None, "exported", "exported"),
    ],
)
def test_servers_take_the_key_of_the_config_or_the_environment(
    node: str,
    own: str | None,
    environment: str | None,
    key: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(API_KEY, raising=False)
    if environment is not None:
        monkeypatch.setenv(API_KEY, environment)
    config = Config(engines=RayEngines(api_key=own)).fleet
    assert cluster_site(config, node, {"CPU": 1}).config.engines.api_key == key


def test_servers_beyond_loopback_get_a_new_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY, raising=False)
    config = Config(engines=RayEngines()).fleet
    sites = [cluster_site(config, "10.0.0.1", {"CPU": 1}) for _ in range(2)]
    keys = [site.config.engines.api_key or "" for site in sites]
    assert len(keys[0]) > 30
    assert keys[0] != keys[1]
