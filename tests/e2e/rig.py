"""The engines that tests share: a plain one, and two that draft, with a KV pool and a draft hub.

A test on the rig opens drivers or servers of its own. It leaves the engines as it found them: idle,
with the model's own weights. Each test begins with empty caches.
"""

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from seer_sgl import Rollout
from seer_sgl.config import FlagValue, KvPoolConfig
from seer_sgl.kvpool.mooncake import open_mooncake
from seer_sgl.link.contract import LINK_TOKEN
from seer_sgl.processes.child import free_port
from tests.e2e.calls import post
from tests.e2e.compare import Samples, collected
from tests.e2e.conftest import (
    HELD_OUT,
    MODEL,
    SERVER_FLAGS,
    SGLANG,
    draft_hubs,
    external,
    servers,
    two_cores,
    two_urls,
)

TOKEN = "a secret of the rig"
PAGE = 16
WEIGHTS = "default"  # the version of the weights that engines start with
WHOLE = {"max_response_len": 600}  # the sampling of the responses that most tests compare with

# The flags of each drafting engine alone, by the paths of its drafts.
OWN: dict[int, dict[str, FlagValue]] = {
    1: {},
    4: {"incremental-streaming-output": True},
}


class Rig:
    """`plain`: the URL of the plain engine. `urls`: of the drafting ones. `master`: the pool's.

    The first drafting engine drafts chains. The second one drafts trees, and streams incrementally.
    """

    def __init__(self, plain: str, urls: list[str], master: str) -> None:
        self.plain = plain
        self.urls = urls
        self.master = master
        self._link, self.hub = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._hub = contextlib.ExitStack()
        self._undivided: dict[str, Samples] = {}

    @property
    def pair(self) -> list[str]:
        """The URLs of the plain engine and a drafting one. A driver on both uses no pool: the plain
        engine computes the KV of every chunk that moves to it."""
        return [self.plain, self.urls[0]]

    def fleet(self, **sections: dict[str, Any]) -> dict[str, Any]:
        """Returns the config of a driver on the drafting engines."""
        draft = {"scope": "fleet", "hub": self.hub, **sections.pop("draft", {})}
        config = external(self.urls, **sections)
        config["engines"] |= {"link": self._link, "sglang": SGLANG}
        pool = {"backend": "mooncake", "master": self.master, "page_size": PAGE}
        return config | {"kv_pool": {**pool, "namespace": "rig"}, "draft": draft}

    async def undivided(
        self, prompts: int | list[dict[str, Any]] = 8, **sections: dict[str, Any]
    ) -> Samples:
        """Returns what the plain engine generates for the first held-out prompts, or for these.

        The samples of a request depend on its prompt's id and index only, so they are made once.
        """
        key = json.dumps([prompts, sections], sort_keys=True)
        if key not in self._undivided:
            config = external([self.plain], **{"scheduling": {"divide": False}, **sections})
            async with Rollout(config) as rollout:
                first = rollout.read_prompts(HELD_OUT)
                chosen = first[:prompts] if isinstance(prompts, int) else prompts
                samples, report = await collected(rollout.run(chosen)), rollout.report()
            assert report["chunks"] == report["samples"]
            assert report["drafting"] is None
            self._undivided[key] = samples
        return self._undivided[key]

    def open_hub(self) -> None:
        self._hub.enter_context(draft_hubs(self.hub))

    def close_hub(self) -> None:
        self._hub.close()

    @contextlib.contextmanager
    def without_hub(self) -> Iterator[None]:
        """Ends the draft hub for the duration of the block."""
        self.close_hub()
        try:
            yield
        finally:
            self.open_hub()

    @contextlib.contextmanager
    def weights_given_back(self) -> Iterator[None]:
        """Gives the engines their own weights back after the block."""
        try:
            yield
        finally:
            for url in (self.plain, *self.urls):
                own = {"model_path": str(MODEL), "weight_version": WEIGHTS}
                post(f"{url}/update_weights_from_disk", **own)

    def reset(self) -> None:
        """Empties the engines' caches, and the pool but for what was read just now. Asserts that
        nothing runs and that the engines have their own weights."""
        for url in (self.plain, *self.urls):
            post(f"{url}/flush_cache?timeout=60")  # fails while requests run
            with urllib.request.urlopen(f"{url}/model_info") as reply:
                assert json.load(reply)["weight_version"] == WEIGHTS
        post(f"{self.urls[0]}/hicache/storage-backend/clear")


@contextlib.contextmanager
def running_rig(folder: Path) -> Iterator[Rig]:
    """Starts the rig, all engines at once, and stops it at the end."""
    plain, urls = two_urls()[0], two_urls()
    runner = asyncio.Runner()
    opening = open_mooncake(KvPoolConfig(backend="mooncake", memory="512mb"), folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv(LINK_TOKEN, TOKEN)
        stack.enter_context(runner)
        master = runner.run(opening.__aenter__())
        stack.callback(lambda: runner.run(opening.__aexit__(None, None, None)))
        rig = Rig(plain, urls, master)
        flags = [SERVER_FLAGS]
        for paths, own in OWN.items():
            file = folder / f"paths{paths}.yaml"
            config = rig.fleet(draft={"paths": paths})
            config["engines"]["sglang"] = SGLANG | own
            file.write_text(yaml.safe_dump(config))
            flags.append(["--fleet", str(file)])
        rig.open_hub()
        stack.callback(rig.close_hub)
        cores = two_cores()
        stack.enter_context(servers([plain, *urls], flags, folder, cores=[cores[1], *cores]))
        yield rig
