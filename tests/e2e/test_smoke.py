"""The smoke test of `make test`, on real servers: the command writes what plain SGLang generates,
and all of Seer on two servers generates the same."""

import json
from pathlib import Path

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout, load_ready
from seer_sgl.rollout.samples import SampleWriter
from tests.docs.printed import not_printed
from tests.e2e.compare import Migrations, accepted_drafts, roll_singly
from tests.e2e.conftest import HELD_OUT, starting
from tests.e2e.drivers import END_S, assert_same_samples, finish, samples_in
from tests.e2e.pools import assert_on_loopback, assert_private
from tests.support.processes import assert_nothing_left
from tests.support.timing import PATIENT

pytestmark = [pytest.mark.own_engines, pytest.mark.smoke]

PROMPTS = 2
SAMPLES = 8  # per prompt
SINGLE = 8  # most requests that run alone, per prompt
SETTINGS = (
    "rollout.seed=11",
    f"rollout.max_prompts={PROMPTS}",
    f"rollout.n_samples_per_prompt={SAMPLES}",
    "sampling.max_response_len=400",
    "scheduling.chunk_tokens=64",
)
KEY = "the-key-of-this-fleet"
# Lines of the pages that a rollout may not print: where Mooncake does not load, or in under 5 s.
SOMETIMES = {
    "KV pool: Mooncake master at 127.0.0.1:P, 1 x 256mb",
    "e0 K running, Q queued, KV U%   e1 ...",
}


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Returns the folder into which the command has written, and what it has logged."""
    out = tmp_path_factory.mktemp("smoke") / "out"
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    with starting() as start:
        driver = start(
            *("--config", "configs/cpu-seer.yaml", "--compare", "--out", str(out)),
            *("--set", "engines.count=1", *options),
        )
        output = finish(driver)
    assert_nothing_left(driver.pid, END_S)
    return out, output


def test_the_command_writes_samples_report_and_timeline_and_plain_sglang_has_the_same(
    commanded: tuple[Path, str],
) -> None:
    out, output = commanded
    report = json.loads((out / "report.json").read_text())
    samples = samples_in(out)
    assert len(samples) == report["samples"] == PROMPTS * SAMPLES
    assert report["response_tokens"] == sum(sample["response_length"] for sample in samples)
    assert report["chunks"] > report["samples"]
    assert report["retractions"] == 0
    assert all(engine["plugin"] for engine in report["engines"])
    first = json.loads(HELD_OUT.read_text().splitlines()[0])
    for sample in samples:
        length = sample["response_length"]
        assert length == len(sample["response_ids"]) == len(sample["rollout_log_probs"])
        assert sample["weight_spans"] == [{"version": "default", "tokens": length}]
        assert sample["text"]
        if sample["group_id"] == first["id"]:
            assert sample["metadata"] == first["metadata"]
    groups = {sample["group_id"] for sample in samples}
    assert sorted((s["group_id"], s["index"]) for s in samples) == sorted(
        (group, index) for group in groups for index in range(SAMPLES)
    )
    assert (out / "timeline.png").read_bytes()[:4] == b"\x89PNG"
    assert (out / "engines" / "e0.log").stat().st_size > 0

    comparison = json.loads((out / "comparison.json").read_text())
    assert comparison["identical"] == comparison["samples"] == len(samples)
    assert comparison["seed"] == report["seed"]
    for name in ("seer_sgl", "plain"):
        assert comparison[name]["response_tokens"] == report["response_tokens"]
    assert comparison["seer_sgl"]["accept_length"] == report["accept_length"] > 1
    assert accepted_drafts(report) > 0
    assert comparison["plain"]["accept_length"] is None
    assert comparison["plain"]["chunks"] == len(samples), "undivided"

    assert f"groups {PROMPTS}/{PROMPTS}" in output, "progress lines, as it is no terminal"
    assert "\x1b[" not in output
    log = [line.replace(str(out), "out/first") for line in output.splitlines()]
    assert log[-1].startswith("next: ")
    missing = set(not_printed(log)) - SOMETIMES
    assert not missing, "getting-started.md and README.md show these lines"


async def test_divided_with_pool_and_drafts_over_two_servers_has_these_samples(
    commanded: tuple[Path, str], tmp_path: Path
) -> None:
    out, _ = commanded
    config = load_ready("cpu-seer", (*SETTINGS, f"engines.api_key={KEY}"))
    seen, total = Migrations(), PROMPTS * SAMPLES
    async with Rollout(
        config, log_dir=tmp_path, placement=AlwaysElsewhere(fetch=True), timing=PATIENT
    ) as rollout:
        assert_on_loopback(at_least=8)
        prompts = rollout.read_prompts(HELD_OUT)
        writer = SampleWriter(tmp_path / "samples.jsonl")
        groups = [group async for group in rollout.run(prompts, [writer, seen])]
        writer.close()
        report = rollout.report()
        # A busy machine ends reads early: then requests that run alone have the time for them.
        await roll_singly(rollout, prompts * SINGLE, [seen], lambda: seen.fetches > total)
    assert len(groups) == PROMPTS
    assert_same_samples(samples_in(out), samples_in(tmp_path))
    assert report["migrations"] == report["chunks"] - report["samples"] > 2 * total
    assert report["cached_tokens"]["storage"] > 0, "KV came from the pool"
    assert accepted_drafts(report) > total
    assert_private(tmp_path, KEY)
