"""Rollout servers on real engines, and requests to them."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from seer_sgl.processes.child import free_port
from seer_sgl.rollout.rollout import Rollout
from tests.e2e.conftest import SEER_SGL, external
from tests.server.helpers import Served, served_config
from tests.support.programs import running, wait_for

LIMIT = 900  # tokens of a request


def serving(urls: list[str], longest: int = 4000) -> AbstractAsyncContextManager[Served]:
    """Runs a server on engines. `longest`: the most tokens of a response."""
    config = {**external(urls, sampling={"max_response_len": longest}), "server": {"port": 0}}
    return served_config(Rollout(config, gives_up=False))


def body(ids: Sequence[int], seed: int, limit: int = LIMIT) -> dict[str, Any]:
    """Returns a body of /generate for exactly `limit` tokens."""
    params = {
        "max_new_tokens": limit,
        "temperature": 1.0,
        "sampling_seed": seed,
        "ignore_eos": True,
    }
    return {"input_ids": list(ids), "sampling_params": params}


class Serving(NamedTuple):
    """A running `seer-sgl serve`."""

    url: str
    process: psutil.Process
    log: Path


@contextlib.contextmanager
def serving_all(
    folder: Path, settings: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Serving]:
    """Starts all of Seer on two engines as a user would, with chunks of 64 tokens; yields the
    server once it is ready. `settings`: of `--set`."""
    folder.mkdir(parents=True, exist_ok=True)
    log, port = folder / "server.log", free_port()
    command = [*SEER_SGL, "serve", "--config", "configs/cpu-seer.yaml", "--port", str(port)]
    command += ["--log-dir", str(folder / "logs")]
    for setting in ("scheduling.chunk_tokens=64", *settings):
        command += ["--set", setting]
    with running(command, log, environment) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/ready", process, log)
        yield Serving(url, psutil.Process(process.pid), log)
