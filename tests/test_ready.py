"""What ships with seer-sgl: configs, the small model, prompts and pinned lists, from any folder."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from seer_sgl import load_ready
from seer_sgl.cli import cli
from seer_sgl.config.ready import CONFIGS, REQUIREMENTS, ready_names
from seer_sgl.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]


def test_a_ready_config_finds_its_model_and_prompts_from_any_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ready_names() == ["cpu", "cpu-pool", "cpu-seer"]
    for name in ready_names():
        config = load_ready(name, ["rollout.max_prompts=3"])
        assert (Path(config.model.path or "") / "model.safetensors").is_file()
        assert Path(config.rollout.prompts or "").is_file()
        assert config.rollout.max_prompts == 3
    assert load_ready("cpu", ["model.path=mine"]).model.path == "mine"


def test_in_a_checkout_its_paths_are_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert load_ready("cpu").model.path == "bench/reasoner/model"


def test_an_unknown_ready_config_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"--ready no: unknown; known: cpu, cpu-pool, cpu-seer"):
        load_ready("no")


def test_a_ready_config_and_a_file_are_refused_together() -> None:
    ended = CliRunner().invoke(cli, ["rollout", "--ready", "cpu", "--config", "mine.yaml"])
    assert isinstance(ended.exception, ConfigError)
    assert ended.exception.exit_status == 2


@pytest.mark.skipif((ROOT / "PKG-INFO").exists(), reason="a source distribution has no links")
def test_the_links_of_the_package_lead_to_the_files_of_the_checkout() -> None:
    assert (CONFIGS.resolve(), *(path.resolve() for path in REQUIREMENTS.values())) == (
        ROOT / "configs",
        ROOT / "requirements-cpu.txt",
        ROOT / "requirements-gpu-overrides.txt",
    )


def test_the_pinned_list_is_printed_as_it_is() -> None:
    printed = CliRunner().invoke(cli, ["requirements", "cpu"])
    assert printed.exit_code == 0
    assert printed.output == (ROOT / "requirements-cpu.txt").read_text()
