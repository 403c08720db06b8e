"""`/openapi.json` describes the server as it is."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seer_sgl.server.generate_body import GenerateRequest
from tests.server.helpers import Served, served
from tests.server.hostile import CarefulFake, leaving_nothing

TOKEN = "a token of the test"
# Whether an engine takes a request is for the engine to decide: a 400 for a body of the right
# types is no contradiction.
UNCHECKED = "positive_data_acceptance"


async def described(it: Served) -> dict[str, Any]:
    async with it.session.get(f"{it.url}/openapi.json") as reply:
        assert reply.status == 200
        return json.loads(await reply.read())  # type: ignore[no-any-return]


async def test_every_route_is_described_by_its_docstring() -> None:
    async with served(CarefulFake()) as it:
        document = await described(it)
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], f"{method} {path}"
            assert operation["responses"]["200"], f"{method} {path}"


async def test_a_request_is_described_by_the_type_that_decodes_it() -> None:
    async with served(CarefulFake()) as it:
        document = await described(it)
    body = document["paths"]["/generate"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/GenerateRequest"}
    properties = document["components"]["schemas"]["GenerateRequest"]["properties"]
    assert list(properties) == [each.name for each in msgspec.structs.fields(GenerateRequest)]
    assert all(each["description"] for each in properties.values())


@pytest.mark.parametrize("examples", [20, pytest.param(500, marks=pytest.mark.long)])
async def test_generated_requests_get_only_documented_answers(
    examples: int, tmp_path: Path
) -> None:
    """Schemathesis generates requests, valid and invalid, from the description."""
    fake, server = CarefulFake(longest=20), {"api_key": TOKEN, "max_body": "1mb"}
    async with served(fake, server=server) as it, leaving_nothing(it, fake):
        command = ("-m", "schemathesis.cli", "run", f"{it.url}/openapi.json", "--no-color")
        options = ("--max-examples", str(examples), "--seed", "1", "--exclude-checks", UNCHECKED)
        token = ("--header", f"Authorization: Bearer {TOKEN}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, *options, *token, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
        assert process.returncode == 0, printed.decode()
