"""The kit for a GPU machine without a package index: packing, bringing over, the environment."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gpu.bare import install, prepare

ROOT = Path(__file__).parents[2]


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 300)),
    st.integers(1, 120),
)
def test_folders_hold_every_byte_once_and_are_not_too_large(
    sizes: dict[str, int], limit: int
) -> None:
    packed = prepare.folders(sizes, limit)
    assert all(sum(piece.end - piece.begin for piece in folder) <= limit for folder in packed)
    for name, size in sizes.items():
        pieces = [piece for folder in packed for piece in folder if piece.name == name]
        assert [piece.begin for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
        assert pieces[-1].end == size


def test_files_arrive_whole_from_folders_in_any_order(tmp_path: Path) -> None:
    files, out = tmp_path / "files", tmp_path / "out"
    files.mkdir()
    contents = {"a.whl": b"0123456789" * 7, "b.whl": b"b", "c.deb": b"cc"}
    for name, content in contents.items():
        (files / name).write_bytes(content)
    packed = prepare.folders({name: len(content) for name, content in contents.items()}, 30)
    for number, pieces in enumerate(packed, 1):
        install.write_folder(out / str(number), files, pieces, number, len(packed))
    assert install.stage(out / "2", tmp_path / "stage") == [1, 3]
    assert install.stage(out / "1", tmp_path / "stage") == [3]
    assert install.stage(out / "3", tmp_path / "stage") == []
    install.join(tmp_path / "stage", tmp_path / "joined")
    joined = {path.name: path.read_bytes() for path in (tmp_path / "joined").iterdir()}
    assert joined == contents


def test_of_the_kernels_only_those_of_hopper_travel() -> None:
    names = {
        "sgl_kernel/__init__.py": (True, True),
        "sgl_kernel/sm90/common_ops.abi3.so": (True, True),
        "sglang_kernel-0.4.7.dist-info/METADATA": (True, True),
        "sgl_kernel/flash_ops.abi3.so": (False, True),
        "sgl_kernel/sm100/common_ops.abi3.so": (False, False),
        "sgl_kernel/flashmla_ops.abi3.so": (False, False),
    }
    for name, (without, with_fa3) in names.items():
        assert prepare.needed(name, fa3=False) == without, name
        assert prepare.needed(name, fa3=True) == with_fa3, name


def test_sglang_finds_the_plugin_of_the_checkout(tmp_path: Path) -> None:
    install.describe_checkout(tmp_path)
    (found,) = importlib.metadata.distributions(path=[str(tmp_path)])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (found.name, found.version) == (project["name"], project["version"])
    (point,) = found.entry_points
    assert (point.group, point.value) == ("sglang.srt.plugins", "seer_sgl.plugin:load")


def test_the_packages_are_those_that_the_project_names() -> None:
    pins = dict(
        line.partition(" ")[0].split("==")
        for line in install.PACKAGES.read_text().splitlines()
        if not line.startswith("#")
    )
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (sglang,) = [one for one in extra["optional-dependencies"]["sglang"] if "sglang==" in one]
    assert sglang == f"sglang=={pins['sglang']}"
    cpu = (ROOT / "requirements-cpu.txt").read_text()
    assert f"mooncake-transfer-engine-non-cuda=={pins['mooncake-transfer-engine-non-cuda']}" in cpu


def test_the_environment_puts_the_checkout_before_the_packages(tmp_path: Path) -> None:
    lines = install.environment(tmp_path).splitlines()
    assert lines[0] == f"export PYTHONPATH={ROOT}:{tmp_path}/site"
    assert all(line.startswith("export ") for line in lines)


@pytest.mark.process
@pytest.mark.parametrize(
    ("folder", "why"),
    [(".", "is no folder of prepare.py"), ("absent", "is no folder of prepare.py")],
)
def test_another_folder_is_refused_in_one_line(tmp_path: Path, folder: str, why: str) -> None:
    command = [sys.executable, str(ROOT / install.PROGRAM), str(tmp_path / folder)]
    ended = subprocess.run(
        [*command, "--root", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert why in ended.stderr
