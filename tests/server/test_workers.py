"""`/workers`: engines join and are drained while requests run, in sglang_router's shapes."""

from typing import Any

import pytest
from aiohttp import web
from typing_extensions import override

from seer_sgl.timing import Timing
from tests.fake_sglang import FakeSGLang, serving
from tests.server.generating import LIMIT, PROMPT, generating
from tests.server.helpers import served, whole
from tests.support.waiting import until


def fake_engine(**more: Any) -> FakeSGLang:
    return FakeSGLang(longest=10_000, delay_s=0.01, **more)


async def test_the_server_is_the_only_worker_and_names_its_engines() -> None:
    async with served(fake_engine(), fake_engine(tp_size=2)) as it:
        status, answer = await it.ask("GET", "/workers")
        assert status == 200 and answer["total"] == 1
        assert answer["stats"] == {"prefill_count": 0, "decode_count": 0, "regular_count": 1}
        (server,) = answer["workers"]
        idle: dict[str, Any] = {"is_healthy": True, "load": 0}
        assert {"id": "server", "url": it.url, **idle}.items() <= server.items()
        assert server["metadata"]["ranks"] == "3"
        first, second = answer["engines"]
        assert {"id": "e0", "worker_type": "regular", **idle}.items() <= first.items()
        assert first.keys() == server.keys()
        assert second["metadata"]["ranks"] == "2"
        assert await it.ask("GET", "/workers/e1") == (200, second)
        assert await it.ask("GET", "/workers/server") == (200, server)
        assert (await it.ask("DELETE", "/workers/server"))[0] == 409
        status, missing = await it.ask("GET", "/workers/e7")
        assert (status, missing["code"]) == (404, "WORKER_NOT_FOUND")
        other_name = it._replace(url=it.url.replace("127.0.0.1", "localhost"))
        _, server = await other_name.ask("GET", "/workers/server")
        assert server["url"] == other_name.url


@pytest.mark.process
async def test_an_engine_joins_and_another_is_drained_while_requests_run() -> None:
    first, second = fake_engine(), fake_engine()
    async with served(first) as it, serving(second) as url:
        second.prompt_lens = first.prompt_lens
        running = {seed << 20: generating(it, seed << 20) for seed in range(1, 30)}
        await until(lambda: len(first.seen) >= 60)
        async with it.session.post(f"{it.url}/workers", json={"url": url + "/"}) as reply:
            assert (reply.status, reply.headers["Location"]) == (202, "/workers/e1")
            answer = await reply.json()
        assert (answer["status"], answer["worker_id"], answer["url"]) == ("accepted", "e1", url)
        await until(lambda: len(second.seen) >= 20)
        status, answer = await it.ask("DELETE", "/workers/e0")
        assert (status, answer["worker_id"]) == (202, "e0")
        await until(lambda: len(it.service.fleet.engines) == 1)
        assert first.running == 0
        seen = len(first.seen)
        for seed, task in running.items():
            assert (await task)["output_ids"] == whole(seed, len(PROMPT), first, LIMIT)
        assert len(first.seen) == seen
        assert (await it.ask("DELETE", "/workers/e0"))[0] == 404


async def test_a_server_without_engines_serves_those_that_join() -> None:
    fake = fake_engine()
    async with served() as it, serving(fake) as url:
        status, answer = await it.post("/generate", input_ids=PROMPT)
        assert (status, answer["error"]["message"]) == (503, "the fleet has no engine")
        async with it.session.post(f"{it.url}/workers", json={"url": url}) as reply:
            assert (reply.status, (await reply.json())["worker_id"]) == (202, "e0")
        await until(lambda: len(it.service.fleet.engines) == 1)
        answer = await generating(it, 1 << 20)
        assert answer["output_ids"] == whole(1 << 20, len(PROMPT), fake, LIMIT)


async def test_neither_a_known_engine_under_any_name_nor_this_server_joins() -> None:
    async with served(fake_engine()) as it:
        url = it.service.fleet.engines[0].info.url
        for own, name in ((url, "e0"), (it.url, "server")):
            status, answer = await it.post("/workers", url=own)
            assert (status, answer["worker_id"], answer["url"]) == (202, name, own)
        for wrong, why in (
            (url.replace("127.0.0.1", "localhost"), "is engine e0"),
            (it.url.replace("127.0.0.1", "localhost"), "rollout server"),
        ):
            status, answer = await it.post("/workers", url=wrong)
            assert status == 400 and why in answer["error"]["message"], answer
        assert len((await it.ask("GET", "/workers"))[1]["engines"]) == 1


async def test_an_engine_that_does_not_fit_is_refused() -> None:
    other = fake_engine(weight_version="v9")
    async with (
        served(fake_engine(), timing=Timing(join_timeout_s=0.0)) as it,
        serving(other) as url,
    ):
        for wrong, why in (
            ({"url": url}, "different weight versions"),
            ({"url": "http://127.0.0.1:9"}, "not ready"),
            ({"url": "nonsense"}, "url"),
            ({}, "url"),
            ({"url": url, "worker_type": "prefill"}, "regular"),
        ):
            status, answer = await it.post("/workers", **wrong)
            assert status == 400 and why in answer["error"]["message"], answer
        assert len((await it.ask("GET", "/workers"))[1]["engines"]) == 1


ROUTES = {
    "admin": [("GET", "/workers"), ("POST", "/continue_generation")],
    "client": [("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/live")],
    "all": [("GET", "/health"), ("GET", "/page/page.js")],
}


@pytest.mark.parametrize(
    ("server", "token", "refused"),
    [
        ({}, None, []),
        ({"api_key": "c"}, None, ["admin", "client"]),
        ({"api_key": "c"}, "c", []),
        ({"api_key": "c", "admin_api_key": "a"}, "c", ["admin"]),
        ({"api_key": "c", "admin_api_key": "a"}, "a", ["client"]),
        ({"admin_api_key": "a"}, None, ["admin"]),
        ({"admin_api_key": "ä"}, "a", ["admin"]),
    ],
)
async def test_the_admin_token_guards_the_fleet_and_the_clients_token_the_rest(
    server: dict[str, Any], token: str | None, refused: list[str]
) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with served(fake_engine(), server=server) as it:
        for kind, routes in ROUTES.items():
            for method, path in routes:
                async with it.session.request(method, it.url + path, headers=headers) as reply:
                    assert reply.status == (401 if kind in refused else 200), path
        unknown = 401 if "client" in refused else 404
        assert (await it.session.get(f"{it.url}/nowhere", headers=headers)).status == unknown


async def test_a_refusal_names_the_token_that_a_route_needs() -> None:
    async with served(fake_engine(), server={"api_key": "c", "admin_api_key": "a"}) as it:
        for path, key in (("/workers", "admin_api_key"), ("/v1/models", "api_key")):
            async with it.session.get(it.url + path) as reply:
                message = f"{path} needs server.{key} as a bearer token"
                assert await reply.json() == {"error": "Unauthorized", "message": message}


async def test_clients_do_not_see_the_secrets_of_a_stock_engine() -> None:
    class Stock(FakeSGLang):
        """SGLang shows its arguments twice: at the top, and in the state of each scheduler."""

        @override
        def _state(self, rank: int) -> dict[str, Any]:
            secrets = {"api_key": "e", "admin_api_key": "e", "ssl_keyfile_password": "e"}
            return {**super()._state(rank), **secrets, "max_prefill_tokens": 5}

        @override
        def _control(self, path: str, reply: dict[str, Any]) -> web.Response:
            return super()._control(path, {**reply, "ssl_keyfile_password": "e"})

    async with served(Stock()) as it:
        status, info = await it.ask("GET", "/server_info")
    (state,) = info["internal_states"]
    assert status == 200 and state["max_prefill_tokens"] == 5
    for name in ("api_key", "admin_api_key", "ssl_keyfile_password"):
        assert state[name] is None
    assert info["ssl_keyfile_password"] is None
