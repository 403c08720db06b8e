"""Clients that nobody here wrote, unchanged, on `seer-sgl serve` with KV pool and drafts."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.engine.launch.process import engine_environment
from seer_sgl.processes.child import free_port
from tests.e2e.calls import post
from tests.e2e.chats import MESSAGES, TEXT
from tests.e2e.conftest import MODEL, ROOT
from tests.e2e.served import serving_all
from tests.support.programs import running, wait_for

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

CLIENT_S = 300.0
REQUESTS, RESPONSE = 12, 150
ASK = {"model": "any", "seed": 3}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with two engines of its own."""
    settings = ["engines.sglang.tool-call-parser=qwen"]
    with serving_all(tmp_path_factory.mktemp("serve"), settings, engine_environment(None)) as it:
        yield it.url


@pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "sglang-oai-chat"])
def test_bench_serving(url: str, backend: str, tmp_path: Path) -> None:
    result = tmp_path / "result.jsonl"
    run_client(
        "sglang.bench_serving",
        *("--backend", backend, "--base-url", url, "--model", str(MODEL)),
        *("--dataset-name", "random-ids", "--num-prompts", str(REQUESTS)),
        *("--random-input-len", "24", "--random-output-len", str(RESPONSE)),
        *("--random-range-ratio", "1", "--output-file", str(result)),
        log=tmp_path / "log",
    )
    measured = json.loads(result.read_text().splitlines()[-1])
    assert measured["completed"] == REQUESTS
    assert measured["total_output_tokens"] == REQUESTS * RESPONSE


def test_runtime_endpoint(url: str, tmp_path: Path) -> None:
    said = json.loads(run_client("tests.e2e.lang_client", url, log=tmp_path / "log"))
    assert said["whole"] and said["streamed"] == said["whole"]
    assert said["pieces"] > 1
    assert len(said["answers"]) == 5 and len(set(said["answers"])) == 1


def test_sglang_router_with_this_server_as_its_worker(url: str, tmp_path: Path) -> None:
    port, metrics, log = free_port(), free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "bench.full.router_process"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", url]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
    with running(command, log, engine_environment(None)) as process:
        router = f"http://127.0.0.1:{port}"
        wait_for(f"{router}/workers", process, log, b'"is_healthy":true')
        for path, body in (
            ("/v1/completions", {"prompt": TEXT, "max_tokens": 150, **ASK}),
            ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 150, **ASK}),
            ("/generate", {"text": TEXT, "sampling_params": {"sampling_seed": 3}}),
        ):
            assert text_of(post(router + path, **body)) == text_of(post(url + path, **body))


def run_client(module: str, *arguments: str, log: Path) -> str:
    """Returns the last line that a client printed. It must succeed."""
    with log.open("w") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "tests.e2e.client_process", module, *arguments],
            cwd=ROOT,
            env=engine_environment(None),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=CLIENT_S,
            check=False,
        )
    assert done.returncode == 0, log.read_text()[-2000:]
    return done.stdout.splitlines()[-1]


def text_of(reply: Any) -> str:
    """Returns the text of a reply of any endpoint."""
    choice = reply["choices"][0] if "choices" in reply else reply
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text
