"""Faults of a plan happen to launched fake servers, and the verdict finds what they break."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from seer_sgl.types import Prompt, token_array
from tests.chaos.plan import Kind, draw
from tests.chaos.rolling import Chaotic, Rolled, Stage
from tests.chaos.verdict import judge
from tests.chaos.wires import wired
from tests.support.launched import RESTARTING, config, rolling, weights_folder

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_servers", "nothing_left")]

PROMPT_LEN = 7
QUICK_KINDS = (
    Kind("kill in a chunk", "engine"),
    Kind("kill at its start", "engine", (0.1, 0.1)),
    Kind("stop", "engine", (0.2, 0.4)),
    Kind("stop for long", "engine", (4.0, 4.0)),
    Kind("throttle", "engine", (0.5, 0.5)),
    Kind("slow", "http", (0.5, 0.5)),
    Kind("cut", "http", (0.5, 0.5)),
    Kind("drop", "http", (0.5, 0.5)),
    Kind("reset", "http"),
    Kind("half-close", "http"),
)
SETTINGS: dict[str, dict[str, Any]] = {
    "engines": {"count": 2, "stall_timeout_s": 1.0, "recovery_timeout_s": 60.0},
    "scheduling": {"chunk_tokens": 16, "max_inflight_per_engine": 12},
    "rollout": {"n_samples_per_prompt": 4, "seed": 1, "max_engine_kills": 1000},
}


# The driver reacts sooner still.
TIMING = msgspec.structs.replace(RESTARTING, readmission_most_s=0.2, control_timeout_s=0.5)


async def test_all_faults_happen_and_no_sample_is_lost_doubled_or_changed(tmp_path: Path) -> None:
    prompts = [
        Prompt(prompt_id=f"p{i}", prompt_ids=token_array([5 + i] * PROMPT_LEN), n=4)
        for i in range(24)
    ]
    model = weights_folder(tmp_path / "model", "the first")
    settings = config(model, tmp_path / "starts")
    for section, values in SETTINGS.items():
        settings[section] = {**settings[section], **values}
    plan = draw(3, 2, kinds=QUICK_KINDS)
    async with wired() as wires, rolling(settings, tmp_path, TIMING) as rollout:
        stage = Stage(rollout, wires, under_way_s=0.03)  # chunks of fakes are short
        undisturbed = await stage.undisturbed(prompts)
        chaotic = await stage.chaotic(prompts, plan, undisturbed.report["response_tokens"], print)
        nothing = await stage.undisturbed([])
    verdict = judge(undisturbed, nothing, chaotic)
    assert verdict.problems == []
    assert verdict.costs["lost_chunks"] > 0
    assert len(undisturbed.samples) == 4 * len(prompts)
    assert [entry.problem for entry in chaotic.happened] == [None] * len(QUICK_KINDS)
    assert_finds_each_defect(undisturbed, nothing, chaotic)


def assert_finds_each_defect(undisturbed: Rolled, nothing: Rolled, chaotic: Chaotic) -> None:
    """Asserts that the verdict names a sample that is missing, doubled or changed."""

    def problems(rolled: Rolled) -> list[str]:
        return judge(undisturbed, nothing, msgspec.structs.replace(chaotic, rolled=rolled)).problems

    rolled = chaotic.rolled
    key = next(key for key, sample in rolled.samples.items() if sample.response_length > 2)
    sample = rolled.samples[key]
    without = {other: one for other, one in rolled.samples.items() if other != key}
    assert problems(msgspec.structs.replace(rolled, samples=without)) == [
        f"sample {key} is missing"
    ]
    assert problems(msgspec.structs.replace(rolled, doubled=[key])) == [f"sample {key} came twice"]
    for name in ("response_ids", "rollout_log_probs"):
        changed = getattr(sample, name)[:]
        changed[1] += 1
        samples = {**without, key: msgspec.structs.replace(sample, **{name: changed})}
        (found,) = problems(msgspec.structs.replace(rolled, samples=samples))
        assert found.startswith(f"sample {key}: ")
    unexplained = msgspec.structs.replace(chaotic, disturbances=[])
    assert len(judge(undisturbed, nothing, unexplained).problems) == len(rolled.ledger.lost_chunks)
