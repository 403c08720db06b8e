"""A server without a token answers programs and its own pages, and no page of another site."""

import pytest

from seer_sgl.server.csrf import cross_site
from tests.fake_sglang import FakeSGLang
from tests.server.helpers import served

HOST = "127.0.0.1:30000"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/generate", {}),  # HTTP/1.0
        ("/generate", {"Host": HOST}),
        ("/generate", {"Host": "localhost:30000"}),
        ("/generate", {"Host": "seer.localhost"}),
        ("/generate", {"Host": "[::1]:30000"}),
        ("/generate", {"Host": "10.0.0.7:80"}),  # a tunnel
        ("/generate", {"Host": "own"}),
        ("/generate", {"Host": HOST, "Origin": f"http://{HOST}"}),
        ("/generate", {"Host": HOST, "Sec-Fetch-Site": "same-origin"}),
        ("/", {"Host": HOST, "Sec-Fetch-Site": "none"}),
        ("/", {"Host": HOST, "Sec-Fetch-Site": "cross-site"}),  # a link
    ],
)
def test_a_program_and_an_own_page_are_answered(path: str, headers: dict[str, str]) -> None:
    assert cross_site("GET", path, headers, "own") is None


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {"Host": "127.0.0.1.evil.example"}),  # DNS rebinding
        ("GET", "/", {"Host": "localhost.evil.example:30000"}),
        ("POST", "/generate", {"Host": HOST, "Origin": "null"}),
        ("POST", "/generate", {"Host": HOST, "Origin": "http://127.0.0.1:3000"}),
        ("GET", "/flush_cache", {"Host": HOST, "Sec-Fetch-Site": "cross-site"}),
        ("GET", "/flush_cache", {"Host": HOST, "Sec-Fetch-Site": "same-site"}),
        ("POST", "/", {"Host": HOST, "Sec-Fetch-Site": "cross-site"}),
    ],
)
def test_another_sites_page_is_not_answered(
    method: str, path: str, headers: dict[str, str]
) -> None:
    assert cross_site(method, path, headers, "own")


async def test_with_a_token_any_name_is_answered() -> None:
    headers = {"Host": "seer.example", "Authorization": "Bearer key", "Origin": "http://a.example"}
    async with served(FakeSGLang(), server={"api_key": "key"}) as it:
        async with it.session.get(f"{it.url}/v1/models", headers=headers) as reply:
            assert reply.status == 200
        for wrong in ("", "Bearer", "Bearer key2", "Bearer k\u00e9y", "Basic key"):
            headers["Authorization"] = wrong
            async with it.session.get(f"{it.url}/v1/models", headers=headers) as reply:
                assert reply.status == 401
