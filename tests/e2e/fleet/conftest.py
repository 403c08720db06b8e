"""Two real engines with a pool and drafts, and a plain one as the reference of all tests here."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import yaml

from seer_sgl import Rollout
from seer_sgl.config import KvPoolConfig
from seer_sgl.driver.load_tokenizer import load_tokenizer
from seer_sgl.kvpool.mooncake import open_mooncake
from seer_sgl.processes import free_port
from tests.e2e.compare import Samples, by_key
from tests.e2e.conftest import (
    HELD_OUT,
    MODEL,
    SERVER_FLAGS,
    draft_hub,
    external,
    servers,
    two_cores,
    two_urls,
)
from tests.e2e.test_speculation import SGLANG

TOKEN = "a secret of this test"
GROUPS = 64
SEED = 11  # of `external`
LONGEST = 200
WORDS = (47, 12)  # tokens that the model often writes


def kinds() -> list[dict[str, Any]]:
    """Returns a different sampling for each group."""
    tokenizer = load_tokenizer(str(MODEL))
    assert tokenizer is not None
    word, other = (tokenizer.decode([token]).strip() for token in WORDS)
    draws: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.6, "top_p": 0.8},
        {"temperature": 1.2, "top_k": 6},
        {"temperature": 0.9, "top_p": 0.7, "top_k": 9},
        {"temperature": 1.3, "min_p": 0.05},
        {"temperature": 0.8, "logit_bias": {"46": -3.0, "12": 1.0}},
        {"temperature": 0.7, "presence_penalty": 0.5},
    ]
    ends: list[dict[str, Any]] = [
        {},
        {"stop": [word]},
        {"stop_token_ids": [WORDS[0]]},
        {"stop": [other, word], "no_stop_trim": True},
        {"stop_token_ids": [WORDS[0]], "min_new_tokens": 30},
        {"ignore_eos": True, "max_new_tokens": 130},
        {"max_new_tokens": 3},
        {"stop_regex": f"{word} ."},
    ]
    return [{"max_new_tokens": LONGEST, **draw, **end} for draw in draws for end in ends]


def prompts() -> list[dict[str, Any]]:
    """Returns prompts with their own sampling and one or two samples each."""
    lines = HELD_OUT.read_text().splitlines()
    return [
        {
            "prompt": json.loads(lines[i % 16])["prompt"],
            "id": f"g{i}",
            "n": 1 + i % 3,
            "sampling": s,
        }
        for i, s in enumerate(kinds())
    ]


@pytest.fixture(scope="package")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the URL of an engine without drafts and pool."""
    [url, _] = two_urls()
    with servers([url], [SERVER_FLAGS], tmp_path_factory.mktemp("plain"), cores=two_cores()[:1]):
        yield url


@pytest.fixture(scope="package")
def reference(plain: str) -> Samples:
    """Returns the undivided samples of a plain engine."""

    async def roll() -> Samples:
        async with Rollout(external([plain], scheduling={"divide": False})) as rollout:
            groups = [group async for group in rollout.run(prompts())]
        return by_key([sample for group in groups for sample in group.samples])

    return asyncio.run(roll())


@pytest.fixture(scope="package")
def fleet(reference: Samples, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Yields the config of two drafting engines with a pool; one of them streams incrementally."""
    folder = tmp_path_factory.mktemp("fleet")

    @contextlib.contextmanager
    def pooled() -> Iterator[str]:
        runner = asyncio.Runner()
        opening = open_mooncake(KvPoolConfig(backend="mooncake", memory="512mb"), folder)
        try:
            master = runner.run(opening.__aenter__())
            yield master
        finally:
            runner.run(opening.__aexit__(None, None, None))
            runner.close()

    with pytest.MonkeyPatch.context() as environment, pooled() as master:
        environment.setenv("SEER_SGL_LINK_TOKEN", TOKEN)
        urls, hub = two_urls(), f"127.0.0.1:{free_port()}"
        config = external(urls) | {
            "kv_pool": {
                "backend": "mooncake",
                "master": master,
                "page_size": 16,
                "namespace": "driver-test",
            },
            "draft": {"scope": "fleet", "hub": hub},
        }
        config["engines"] |= {"link": f"127.0.0.1:{free_port()}"}
        flags: list[list[str]] = []
        for own in ({}, {"incremental-streaming-output": True}):
            file = folder / f"fleet{len(flags)}.yaml"
            engines = config["engines"] | {"sglang": SGLANG | own}
            file.write_text(yaml.safe_dump(config | {"engines": engines}))
            flags.append(["--fleet", str(file)])
        with draft_hub(hub), servers(urls, flags, folder, cores=two_cores()):
            yield config


@contextlib.asynccontextmanager
async def opened(config: dict[str, Any], **options: Any) -> AsyncIterator[Rollout]:
    async with Rollout(config, **options) as rollout:
        yield rollout
        assert rollout.driver._scheduler.check() == [], "an idle driver has no leftovers"
