"""Names of KV: equal only where the bytes are interchangeable."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seer_sgl.kvpool.namespace import EDGE_BYTES, Layout, WeightsName, model_fingerprint

LAYOUT = Layout(
    model="m", dtype="torch.float32", layout="page_first", page_size=64, tp_size=1, pp_size=1
)
OTHERS: dict[str, Any] = {
    "model": "n",
    "dtype": "torch.bfloat16",
    "layout": "layer_first",
    "page_size": 16,
    "tp_size": 2,
    "pp_size": 2,
}


@pytest.mark.parametrize("field", Layout.__struct_fields__)
def test_every_fact_of_a_layout_and_only_a_change_of_it_changes_the_name(field: str) -> None:
    other = msgspec.structs.replace(LAYOUT, **{field: OTHERS[field]})
    assert other.tag("fleet") != LAYOUT.tag("fleet")
    same = msgspec.structs.replace(LAYOUT, **{field: getattr(LAYOUT, field)})
    assert same.tag("fleet") == LAYOUT.tag("fleet")


def test_facts_do_not_stand_in_for_each_other() -> None:
    swapped = msgspec.structs.replace(LAYOUT, tp_size=2), msgspec.structs.replace(LAYOUT, pp_size=2)
    assert len({layout.tag("fleet") for layout in swapped}) == 2


def test_fleets_of_other_namespaces_do_not_meet() -> None:
    assert len({LAYOUT.tag(name) for name in ("", "a", "b")}) == 3


def test_a_name_is_short_and_safe_in_a_file_name() -> None:
    tag = LAYOUT.tag("a/b:c d" * 100)
    assert len(tag) < 32
    assert tag.replace("-", "").isalnum()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 64}')
    (folder / "model-1.safetensors").write_bytes(bytes(3 * EDGE_BYTES))
    (folder / "model-2.safetensors").write_bytes(b"weights")
    for shard in range(10, 16):
        (folder / f"model-{shard}.safetensors").write_bytes(b"%d" % shard)
    return folder


def test_a_copied_checkpoint_keeps_its_name(checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoint, tmp_path / "elsewhere")
    (copy / "README.md").write_text("no part of the model")
    assert model_fingerprint(str(copy)) == model_fingerprint(str(checkpoint))


def write_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"hidden_size": 65}')


def lose_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def poke(folder: Path, offset: int) -> None:
    with (folder / "model-1.safetensors").open("r+b") as file:
        file.seek(offset)
        file.write(b"\1")


def write_head(folder: Path) -> None:
    poke(folder, EDGE_BYTES - 1)


def write_tail(folder: Path) -> None:
    poke(folder, 2 * EDGE_BYTES)


def write_small_file(folder: Path) -> None:
    (folder / "model-2.safetensors").write_bytes(b"weighty")


def grow(folder: Path) -> None:
    (folder / "model-1.safetensors").write_bytes(bytes(3 * EDGE_BYTES + 1))


def rename(folder: Path) -> None:
    (folder / "model-2.safetensors").rename(folder / "model-3.safetensors")


@pytest.mark.parametrize("suffix", ["safetensors", "bin", "pt", "gguf"])
def test_one_more_weight_file_changes_the_name(checkpoint: Path, suffix: str) -> None:
    before = model_fingerprint(str(checkpoint))
    (checkpoint / f"more.{suffix}").touch()
    assert model_fingerprint(str(checkpoint)) != before


@pytest.mark.parametrize(
    "change",
    [write_config, lose_config, write_head, write_tail, write_small_file, grow, rename],
    ids=lambda change: change.__name__,
)
def test_a_changed_checkpoint_has_another_name(checkpoint: Path, change: Any) -> None:
    before = model_fingerprint(str(checkpoint))
    change(checkpoint)
    assert model_fingerprint(str(checkpoint)) != before


def test_a_hub_id_is_its_own_name() -> None:
    names = [model_fingerprint(hub_id) for hub_id in ("org/model", "org/model", "org/other")]
    assert names[0] == names[1] != names[2]


def test_weights_updated_under_a_name_are_found_by_everyone_who_has_that_name() -> None:
    here, there = WeightsName("default", "unique-1"), WeightsName("default", "unique-2")
    assert here.current == there.current == "default"
    here.updated("step-1")
    there.updated("step-1")
    assert here.current == there.current == "step-1"


@pytest.mark.parametrize("nameless", [None, ""])
def test_weights_updated_without_a_name_are_this_engines_own(nameless: str | None) -> None:
    here, there = WeightsName("default", "unique-1"), WeightsName("default", "unique-2")
    names = {"default"}
    for _ in range(2):
        for engine in (here, there):
            engine.updated(nameless)
            names.add(engine.current)
    assert len(names) == 5
    here.updated("step-3")
    assert here.current == "step-3"


def test_a_version_that_is_no_string_is_named_like_its_text() -> None:
    assert WeightsName(7, "unique").current == "7"
