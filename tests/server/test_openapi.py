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

CLIENT, ADMIN = "a token of clients", "a token of admins"
QUICK = ("--phases", "fuzzing", "--max-examples", "4")
THOROUGH = ("--max-examples", "100")
# Whether an engine takes a request is for the engine to decide: a 400 for a body of the right
# types is no contradiction.
UNCHECKED = "positive_data_acceptance"


async def described(it: Served) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {CLIENT}"}
    async with it.session.get(f"{it.url}/openapi.json", headers=headers) as reply:
        assert reply.status == 200
        return json.loads(await reply.read())  # type: ignore[no-any-return]


async def test_every_route_is_described_by_its_docstring() -> None:
    async with served(CarefulFake()) as it:
        document = await described(it)
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], f"{method} {path}"
            assert {"200", "202"} & set(operation["responses"]), f"{method} {path}"


async def test_a_request_is_described_by_the_type_that_decodes_it() -> None:
    async with served(CarefulFake()) as it:
        document = await described(it)
    body = document["paths"]["/generate"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/GenerateRequest"}
    properties = document["components"]["schemas"]["GenerateRequest"]["properties"]
    assert list(properties) == [each.name for each in msgspec.structs.fields(GenerateRequest)]
    assert all(each["description"] for each in properties.values())


@pytest.mark.process
@pytest.mark.parametrize("token", [CLIENT, ADMIN])
@pytest.mark.parametrize("effort", [QUICK, pytest.param(THOROUGH, marks=pytest.mark.long)])
async def test_generated_requests_get_only_documented_answers(
    effort: tuple[str, ...], token: str, tmp_path: Path
) -> None:
    """Schemathesis generates requests, valid and invalid, from the description.

    The tokens keep apart what clients call and what pauses the server for them.
    """
    fake = CarefulFake(longest=20, model_path=str(tmp_path))  # a chat looks for its defaults there
    server = {"api_key": CLIENT, "admin_api_key": ADMIN, "max_body": "1mb"}
    async with served(fake, server=server) as it, leaving_nothing(it, fake):
        file = tmp_path / "openapi.json"
        file.write_text(json.dumps(await described(it)))
        command = ("-m", "schemathesis.cli", "run", str(file), "--url", it.url, "--no-color")
        options = (
            *effort,
            "--suppress-health-check",
            "all",
            "--seed",
            "1",
            "--exclude-checks",
            UNCHECKED,
            "--exclude-path",  # it answers 503 while a pause of another request lasts
            "/ready",
        )
        header = ("--header", f"Authorization: Bearer {token}")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            *options,
            *header,
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await process.communicate()
        assert process.returncode == 0, printed.decode()
