"""Tiny random models of many families on real SGLang servers: what the driver reads is what they
read, and divided equals undivided, stop strings included."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seer_sgl import Rollout
from seer_sgl.driver import load_tokenizer as loading
from seer_sgl.engine.launch.process import server_flags
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import STOP_TOKENS
from seer_sgl.processes.child import free_port
from seer_sgl.types import Sample
from tests.e2e.calls import post
from tests.e2e.compare import Samples, assert_identical, collected
from tests.e2e.conftest import SGLANG, external, servers
from tests.e2e.weights import add_weights
from tests.support.tokenizers import load_tokenizer
from tests.tokenizers.families import FAMILIES, Family

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

PROMPTS = ["The quick brown", "def main(", "日本語の", " é 👍 x\n\n", "a  b\tc", "12345, 6"]
LONGEST = 48  # tokens of a response
CHUNK = 5
FLAGS = server_flags({**SGLANG, "max-total-tokens": 4096, "max-running-requests": 24})
# The reasoning model is a Qwen2. SGLang refuses gpt-oss with `torch_native`.
ELSEWHERE = ("qwen2", "gpt-oss")
NAMES = [family.name for family in FAMILIES if family.name not in ELSEWHERE]
OTHERWISE = "mistral-model"  # transformers alone reads its tokenizer otherwise than SGLang does


async def roll_family(
    folder: Path, family: Family, url: str, sampling: dict[str, Any], **scheduling: Any
) -> Samples:
    """Returns the samples of PROMPTS on a server."""
    config = external(
        [url],
        scheduling={"chunk_tokens": CHUNK, **scheduling},
        sampling={"max_response_len": LONGEST, **sampling},
        rollout={"seed": 7, "n_samples_per_prompt": 4},
    )
    config["model"] = {"path": str(folder), "trust_remote_code": family.own_code}
    async with Rollout(config) as rollout:
        return await collected(rollout.run(PROMPTS))


def stops_in(samples: Sequence[Sample]) -> list[str]:
    """Returns stop strings of a few tokens, some with parts of characters, from the responses."""
    texts = [text for sample in samples if len(text := sample.text or "") > 30]
    return [texts[i % len(texts)][9 + 3 * i : 13 + 4 * i] for i in range(4)]


def generated(url: str, text: str, stops: Sequence[str] = ()) -> tuple[list[int], str, Any]:
    """Returns what SGLang itself makes of a text prompt: tokens, text and the rest of the reply."""
    params = {"temperature": 0, "max_new_tokens": LONGEST, "stop": stops}
    answer = post(f"{url}/generate", text=text, sampling_params=params, return_logprob=True)
    meta = answer["meta_info"]
    return [token for _, token, _ in meta["output_token_logprobs"]], answer["text"], meta


async def check_family(family: Family, tmp_path: Path) -> None:
    folder = add_weights(family.make(tmp_path))
    url = f"http://127.0.0.1:{free_port()}"
    flags = ["--model-path", str(folder), *FLAGS]
    if family.own_code:
        flags.append("--trust-remote-code")
    with servers([url], [flags], tmp_path):
        free = await roll_family(folder, family, url, {}, divide=False)
        stops = stops_in(list(free.values()))
        sampling = {"stop": stops, "no_stop_trim": True}
        whole = await roll_family(folder, family, url, sampling, divide=False)
        parts = await roll_family(folder, family, url, sampling)
        greedy = await roll_family(folder, family, url, {"temperature": 0})
        plain = [generated(url, text) for text in PROMPTS]
        _, _, counted = generated(url, PROMPTS[0], stops)
        if family.name == OTHERWISE:
            await check_refusal(folder, family, url)
    tokenizer = load_tokenizer(str(folder), family.own_code)
    assert tokenizer is not None
    assert counted[STOP_TOKENS][-1] == max(map(tokenizer.stop_len, stops))
    assert_identical(whole, parts)
    assert max(sample.chunks for sample in parts.values()) > 5
    assert any(isinstance(sample.matched, str) for sample in parts.values())
    for number, (ids, text, _) in enumerate(plain):
        ours = greedy[str(number), 0]
        assert (list(ours.response_ids), ours.text) == (ids, text)


async def check_refusal(folder: Path, family: Family, url: str) -> None:
    """Asserts that a driver which transformers alone gives its tokenizer refuses the engine."""
    loading._loaded.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "PROGRAM", "seer_sgl.no_such_module")
        line = r"^engine e0 \(.*\) reads text otherwise than this process: the tokens of the prompt"
        with pytest.raises(ConfigError, match=line):
            await roll_family(folder, family, url, {})
    loading._loaded.cache_clear()


@pytest.mark.parametrize("name", NAMES)
async def test_a_family_runs_as_on_plain_sglang(name: str, tmp_path: Path) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    await check_family(family, tmp_path)
