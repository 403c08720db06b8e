"""The kit for a GPU machine without a package index: packing, bringing over, the environment."""

import importlib.metadata
import subprocess
import sys
import tomllib
import zipfile
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
    install.write_folders(out, files, packed, install.BASE)
    stage = tmp_path / "stage"
    assert install.stage(out / "2", stage) == ["1", "3"]
    assert install.stage(out / "1", stage) == ["3"]
    assert not install.complete(stage / install.BASE)
    assert install.stage(out / "3", stage) == []
    assert install.complete(stage / install.BASE)
    install.join(stage / install.BASE, tmp_path / "joined")
    joined = {path.name: path.read_bytes() for path in (tmp_path / "joined").iterdir()}
    assert joined == contents


@pytest.mark.parametrize("later", [install.BASE, install.FA3])
def test_flash_attention_3_arrives_before_or_after_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    files, out, root = tmp_path / "files", tmp_path / "out", tmp_path / "root"
    files.mkdir()
    contents = {
        "sgl_kernel/__init__.py": b"",
        "sgl_kernel/flash_ops.abi3.so": b"fa3" * 9,
        "sgl_kernel/sm90/common_ops.abi3.so": b"hopper",
        "sgl_kernel/sm100/common_ops.abi3.so": b"unneeded",
        "sgl_kernel/flashmla_ops.abi3.so": b"unneeded",
        "sglang_kernel-1.dist-info/METADATA": b"",
    }
    wheel = tmp_path / "sglang_kernel-1.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, content in contents.items():
            packed.writestr(name, content)
    for kind in (install.BASE, install.FA3):
        prepare.pack_kernels(wheel, files, kind)
        size = (files / install.KERNELS[kind]).stat().st_size
        in_folders = prepare.folders({install.KERNELS[kind]: size}, 150)
        install.write_folders(out, files, in_folders, kind)
    monkeypatch.setattr(install, "run", lambda *_: None)  # there are no wheels
    kernels = root / "site" / "sgl_kernel" / "flash_ops.abi3.so"
    sooner = {install.BASE: install.FA3, install.FA3: install.BASE}[later]
    for kind in (sooner, later):
        assert not kernels.exists()
        for folder in sorted(out.glob("fa3-*" if kind == install.FA3 else "[0-9]*")):
            missing = install.stage(folder, root / "stage")
        assert not missing
        install.install(root, kind)
    site = root / "site"
    installed = {str(path.relative_to(site)) for path in site.glob("sgl*/**/*") if path.is_file()}
    assert installed == {name for name, content in contents.items() if content != b"unneeded"}
    assert kernels.read_bytes() == contents["sgl_kernel/flash_ops.abi3.so"]
    assert (root / "env.sh").exists()


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
    [
        ("old", "was written by another version of prepare.py"),
        (".", "is no folder of prepare.py"),
        ("absent", "is no folder of prepare.py"),
    ],
)
def test_another_folder_is_refused_in_one_line(tmp_path: Path, folder: str, why: str) -> None:
    (tmp_path / "old").mkdir()
    manifest = '{"number": 1, "folders": 1, "pieces": []}'
    (tmp_path / "old" / install.MANIFEST).write_text(manifest)
    command = [sys.executable, str(ROOT / install.PROGRAM), str(tmp_path / folder)]
    ended = subprocess.run(
        [*command, "--root", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert why in ended.stderr
