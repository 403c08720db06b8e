"""How a test starts emulated servers: `seer-sgl engine` with SGLang's flags and a plugin more."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from bench import engine_plugin
from seer_sgl.config import FlagValue
from seer_sgl.engine.launch.process import server_flags
from seer_sgl.link import contract
from seer_sgl.processes.child import free_port
from tests.e2e.conftest import MODEL, servers

SETTINGS = "SEER_SGL_EMULATION"  # the environment variable
LARGEST = 4  # requests in a graph; a larger batch runs without one
GRAPHS: list[int | float | str] = [1, 2, LARGEST]
WIDTHS = (1, 5, 6)  # with STRIDE
STRIDE = 6
FLAGS: Mapping[str, FlagValue] = {
    "model-path": str(MODEL),
    "attention-backend": "triton",
    "dtype": "float32",
    "cuda-graph-bs-decode": GRAPHS,
    "max-running-requests": LARGEST,
    "max-total-tokens": 4096,
    "context-length": 1024,
    "skip-server-warmup": True,
    "watchdog-timeout": 3000,
}
DRAFTING: Mapping[str, FlagValue] = {
    "speculative-algorithm": contract.ALGORITHM,
    "speculative-num-draft-tokens": STRIDE,
}
EXACT: Mapping[str, FlagValue] = {"enable-deterministic-inference": True}


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the processes of a server emulate.

    every_width: drafts are verified at each width in turn, between plain steps (turns.py). triton:
    the attention is SGLang's Triton backend; without it, only the event loop is emulated.
    """

    every_width: bool = False
    triton: bool = True


def settings() -> Settings:
    """Returns the settings of this process."""
    return msgspec.json.decode(os.environ[SETTINGS], type=Settings)


def environment(folder: Path, chosen: Settings) -> dict[str, str]:
    """Returns the variables that make an engine load the emulation.

    folder: receives the metadata of the plugin's package.
    """
    return {
        **engine_plugin.environment(folder, "seer_sgl_emulation", "tests.emulation.plugin:load"),
        "TRITON_INTERPRET": "1",
        SETTINGS: msgspec.json.encode(chosen).decode(),
    }


@contextlib.contextmanager
def emulated(
    folder: Path,
    flags: Mapping[str, FlagValue],
    chosen: Settings,
    *,
    paths: int = 4,
    exact: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yields the URL of an emulated server.

    paths: continuations per node of a draft. exact: as `engines.exact`. variables: of another
    plugin in `folder`/plugin.
    """
    draft = contract.DraftSettings("engine", STRIDE - 1, paths, 1 << 28, exact)
    url = f"http://127.0.0.1:{free_port()}"
    own = environment(folder / "plugin", chosen) | {contract.DRAFT: draft.encoded()}
    with servers([url], [server_flags({**FLAGS, **flags})], folder, {**(variables or {}), **own}):
        yield url
