"""Weight updates that go wrong, and engines that die in them: real trainings with real engines."""

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from reasoner import grpo, prompts
from trainings import ended, steps_of

pytestmark = [pytest.mark.engines, pytest.mark.long]
FAULTY = Path(__file__).with_name("faulty_command.py")
SMALL = ("--seer.bucket_mb", "1")  # several buckets: the model has 1.8 MB


class Trained(NamedTuple):
    """A training that has ended."""

    status: int
    output: str

    @property
    def kl(self) -> dict[int, float]:
        """The difference of log probabilities of engines and trainer, by step."""
        return {step: abs(figures["vllm_kl"]) for step, figures in steps_of(self.output).items()}


def train(
    folder: Path, fault: str, steps: int, *seer: str, engines: int = 2, **run: Any
) -> Trained:
    """Runs a training with a fault. `seer`: more of the flags `--seer.*`."""
    dataset, config = folder / "prompts.jsonl", folder / "engines.yaml"
    chosen = grpo.Run(dataset=dataset, folder=folder, **run)
    count = steps * chosen.prompts_per_step
    prompts.write(grpo.PROMPTS / "train.jsonl", dataset, count, most_steps=20)
    config.write_text(grpo.ENGINES.read_text().replace("count: 2", f"count: {engines}"))
    server = ("--seer.config", str(config), "--seer.command", grpo.SEER)
    command = grpo.command(chosen, Path(sys.executable), [*server, *seer], [str(FAULTY), fault])
    it = Trained(*ended(command))
    print(it.kl, *differences(it), sep="\n")  # shown by pytest -s
    return it


def differences(it: Trained) -> list[str]:
    """Returns the trainer's lines about its updates."""
    return re.findall(r"step \d+: (?:weights|sending|engine|the update|not updated).*", it.output)


RATE = 3e-3  # one step changes log probabilities by much more than the noise of bf16
CONTROLS = {
    "skipped": "step 2: engine e0: its log probabilities ",
    "swapped": "step 1: engine e0: its log probabilities differ from the trainer's by ",
    f"one:{grpo.MODEL}": "step 2: engine e1: its log probabilities ",
}


@pytest.mark.parametrize(("fault", "line"), CONTROLS.items(), ids=["skipped", "swapped", "one"])
def test_the_check_ends_the_training_at_the_wrong_update(
    tmp_path: Path, fault: str, line: str
) -> None:
    it = train(tmp_path, fault, 2, learning_rate=RATE)
    assert it.status != 0
    assert line in it.output, it.output[-3000:]
    assert len(it.kl) == int(line[5]) - 1, "it ends in the update of that step"


@pytest.mark.parametrize("fault", CONTROLS, ids=["skipped", "swapped", "one"])
def test_without_the_check_the_log_probabilities_show_the_wrong_update(
    tmp_path: Path, fault: str
) -> None:
    it = train(tmp_path, fault, 3, "--seer.check", "off", learning_rate=RATE)
    assert it.status == 0, it.output[-3000:]
    assert it.kl[1] <= 1e-3 < it.kl[3]


def test_engines_that_end_after_before_and_in_an_update_leave_the_training_to_the_last_one(
    tmp_path: Path,
) -> None:
    it = train(tmp_path, "kill", 4, *SMALL, engines=3)
    assert it.status == 0, it.output[-3000:]
    assert sorted(it.kl) == [1, 2, 3, 4] and max(it.kl.values()) <= 1e-3
    assert "step 0: engine e0 is not checked: " in it.output
    assert "step 1: the update continues without engine e0: " in it.output
    assert re.search(r"step 2: sending the weights again: .*engine e1: ", it.output)
    assert re.search(r"step 3: the update continues without engine e0: .*; engine e1: ", it.output)


@pytest.mark.timeout(1200)
def test_a_server_that_is_killed_in_an_update_gets_all_again(tmp_path: Path) -> None:
    it = train(tmp_path, "server", 4, *SMALL, learning_rate=RATE)
    assert it.status == 0, it.output[-3000:]
    assert sorted(it.kl) == [1, 2, 3, 4] and max(it.kl.values()) <= 1e-3
    assert it.output.count("seer-sgl serve ended by SIGKILL") == 1
    sent = re.findall(r"step (\d): weights sent to e0, e1", it.output)
    assert sent == ["0", "1", "2", "3", "4"], "each once as a whole"
    versions = [figures["seer_oldest_version"] for figures in steps_of(it.output).values()]
    assert versions == [0, 1, 2, 3]


@pytest.mark.timeout(1800)  # every call to the engine that hangs waits for up to a minute
def test_an_engine_that_hangs_in_an_update_leaves_the_training_to_the_other_one(
    tmp_path: Path,
) -> None:
    it = train(tmp_path, "hang", 4, *SMALL, "--seer.timeout_s", "120")
    assert it.status == 0, it.output[-3000:]
    assert sorted(it.kl) == [1, 2, 3, 4] and max(it.kl.values()) <= 1e-3
    assert re.search(r"step 2: sending the weights again: .*engine e1: ", it.output)
    assert re.search(r"step 3: the update continues without .*engine e1: ", it.output)


@pytest.mark.parametrize("stage", [1, 3])
def test_other_zero_stages_send_the_same(tmp_path: Path, stage: int) -> None:
    it = train(tmp_path, "none", 3, *SMALL, zero_stage=stage)
    assert it.status == 0, it.output[-3000:]
    assert sorted(it.kl) == [1, 2, 3] and max(it.kl.values()) <= 1e-3


def test_weights_through_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "sync"
    it = train(tmp_path, "none", 3, "--seer.sync", "disk", "--seer.sync_dir", str(folder))
    assert it.status == 0, it.output[-3000:]
    assert sorted(it.kl) == [1, 2, 3] and max(it.kl.values()) <= 1e-3
    assert [each.name for each in folder.iterdir()] == ["step-3"]
