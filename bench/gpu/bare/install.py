"""Installs SGLang on a GPU machine without a package index, from the folders of prepare.py.

`python3 bench/gpu/bare/install.py FOLDER` takes one folder, in any order, and installs a set of
folders into ~/seer with the last one of the set: `base`, or the kernels of FlashAttention 3, which
may come while a session measures. Then `. ~/seer/env.sh` sets the environment for
`python3 -m bench.gpu`. It needs Python 3.12, pip, and the packages beside which packages.txt was
made.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PROGRAM = "bench/gpu/bare/install.py"
HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
PACKAGES = HERE / "packages.txt"
BASE, FA3 = "base", "fa3"  # sets of folders
KERNELS: Mapping[str, str] = {BASE: "kernels.tar.xz", FA3: "fa3.tar.xz"}
SYSTEM_FILES = "*.deb"
MANIFEST = "manifest.json"


class Piece(NamedTuple):
    """A piece of a file of `size` bytes, from `begin` to `end`."""

    name: str
    begin: int
    end: int
    size: int

    @property
    def file(self) -> str:
        """The name of the piece in its folder."""
        return self.name if self.end - self.begin == self.size else f"{self.name}.{self.begin}"


def folder_name(kind: str, number: int) -> str:
    """Returns the name of a folder of a set."""
    return str(number) if kind == BASE else f"{kind}-{number}"


def write_folders(
    out: Path, files: Path, packed: Sequence[Sequence[Piece]], kind: str
) -> dict[Path, int]:
    """Writes the folders of a set, with pieces of the files in `files`. Returns the bytes of each
    folder."""
    sizes = {}
    for number, pieces in enumerate(packed, 1):
        folder = out / folder_name(kind, number)
        folder.mkdir(parents=True)
        for piece in pieces:
            with (files / piece.name).open("rb") as file:
                file.seek(piece.begin)
                (folder / piece.file).write_bytes(file.read(piece.end - piece.begin))
        manifest = {"set": kind, "number": number, "folders": len(packed), "pieces": pieces}
        (folder / MANIFEST).write_text(json.dumps(manifest))
        sizes[folder] = sum(piece.end - piece.begin for piece in pieces)
    return sizes


def stage(folder: Path, stage: Path) -> list[str]:
    """Takes a folder over into `stage`. Returns the names of those of its set that are missing."""
    manifest = json.loads((folder / MANIFEST).read_text())
    kind, own = manifest["set"], stage / manifest["set"] / str(manifest["number"])
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(folder, own)
    return [
        folder_name(kind, number)
        for number in range(1, manifest["folders"] + 1)
        if not (stage / kind / str(number) / MANIFEST).exists()
    ]


def join(stage: Path, files: Path) -> None:
    """Puts the files together from the pieces of a set in `stage`."""
    files.mkdir(exist_ok=True)
    for manifest in stage.glob(f"*/{MANIFEST}"):
        for piece in (Piece(*fields) for fields in json.loads(manifest.read_text())["pieces"]):
            path = files / piece.name
            with path.open("r+b" if path.exists() else "wb") as file:
                file.seek(piece.begin)
                file.write((manifest.parent / piece.file).read_bytes())


def install_base(root: Path, files: Path) -> None:
    """Installs packages, kernels and system libraries below `root`."""
    site, libraries = root / "site", root / "lib"
    libraries.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--no-compile", "--no-cache-dir", "--upgrade", "--target", str(site)]
    run(*pip, *map(str, files.glob("*.whl")))
    with tarfile.open(files / KERNELS[BASE]) as kernels:
        kernels.extractall(site, filter="data")
    for package in files.glob(SYSTEM_FILES):
        run("dpkg", "-x", str(package), str(root / "deb"))
    for library in (root / "deb").glob("**/x86_64-linux-gnu/*.so*"):  # /lib and /usr/lib
        shutil.copy(library, libraries, follow_symlinks=True)
    describe_checkout(site)


def install_fa3(root: Path, files: Path) -> None:
    """Adds the kernels of FlashAttention 3, each file at once: a session may be running."""
    unpacked = root / FA3
    with tarfile.open(files / KERNELS[FA3]) as kernels:
        kernels.extractall(unpacked, filter="data")
    for file in unpacked.glob("**/*.so"):
        file.replace(root / "site" / file.relative_to(unpacked))
    shutil.rmtree(unpacked)


def describe_checkout(site: Path) -> None:
    """Makes the checkout a package, by whose entry point SGLang finds the plugin."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(metadata)
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{point} = {target}" for point, target in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def environment(root: Path) -> str:
    """Returns the shell commands that set the environment.

    SGLang's radix tree in Rust is compiled for torch 2.13, and reads the tensors of torch 2.11
    wrongly ("got Bool"); SGLang has the same in Python.
    """
    return "\n".join(
        f"export {name}={value}"
        for name, value in {
            "PYTHONPATH": f"{CHECKOUT}:{root}/site",
            "LD_LIBRARY_PATH": f"{root}/lib:$LD_LIBRARY_PATH",
            "PATH": f"{root}/site/bin:$PATH",
            "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
            "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
            "HF_HUB_OFFLINE": "1",
            "TRITON_CACHE_DIR": f"{root}/triton",
            "NUMBA_CACHE_DIR": f"{root}/numba",
            "PYTHONUNBUFFERED": "1",
        }.items()
    )


def main() -> None:
    """Prints one line. Exits with status 2 if the folder or this Python is not usable."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="one of the folders of prepare.py")
    parser.add_argument("--root", type=Path, default=Path.home() / "seer")
    options = parser.parse_args()
    root = options.root.resolve()
    if not (options.folder / MANIFEST).exists():
        fail(f"{options.folder} is no folder of prepare.py: it has no {MANIFEST}")
    kind = json.loads((options.folder / MANIFEST).read_text()).get("set")
    if kind not in KERNELS:
        fail(f"{options.folder} was written by another version of prepare.py")
    missing = stage(options.folder, root / "stage")
    if missing:
        print(f"{options.folder} is here; missing: {', '.join(missing)}")
        return
    if sys.version_info[:2] != (3, 12):
        fail(f"the packages are for Python 3.12; this is {sys.version.split()[0]}")
    install(root, kind)


def install(root: Path, kind: str) -> None:
    """Installs a set whose folders are all staged; FlashAttention 3 once the base is there."""
    installed, fa3 = root / "env.sh", root / "stage" / FA3
    if kind == BASE:
        installed.unlink(missing_ok=True)  # written last: what follows is installed
        join(root / "stage" / BASE, root / "files")
        install_base(root, root / "files")
        installed.write_text(environment(root) + "\n")
        print(f"installed; next: . {installed} && python3 -m bench.gpu ~/results")
    if not installed.exists():
        print("FlashAttention 3 is here; it is installed with the last of the other folders")
    elif complete(fa3):
        join(fa3, root / "files")
        install_fa3(root, root / "files")
        print("FlashAttention 3 installed")


def complete(stage: Path) -> bool:
    """Returns whether all folders of a set are staged."""
    found = list(stage.glob(f"*/{MANIFEST}"))
    return bool(found) and len(found) == json.loads(found[0].read_text())["folders"]


def run(*command: str) -> None:
    """Runs a command. Ends the program if it fails; its own output says why."""
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError):
        fail(f"this failed: {' '.join(command[:5])} ...")


def fail(problem: str) -> None:
    """Ends the program with one line and status 2."""
    print(f"{PROGRAM}: {problem}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
