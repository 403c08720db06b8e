"""Packs what a GPU machine without a package index lacks, on a machine that has one.

`python -m bench.gpu.bare.prepare OUT` downloads the packages of packages.txt for Python 3.12 on
x86-64, leaves out what a dense model on Hopper does not load, and writes folders OUT/1, OUT/2, ...
of at most --limit MB. Bring the checkout and the folders over, and call install.py there with each.
`--fa3` writes the kernels of FlashAttention 3 into folders of their own, OUT/fa3-1, ..., which can
follow while the machine measures: 1.1 GB, packed 120 MB, in ten minutes and with 3 GB of memory.
"""

import argparse
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from .install import BASE, FA3, KERNELS, PACKAGES, SYSTEM_FILES, Piece, write_folders

PROGRAM = "bench.gpu.bare.prepare"
PYTHON = "3.12"
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 24, 17, 12)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
SYSTEM = ("libibverbs1", "libnl-3-200", "libnl-route-3-200")  # Debian packages that Mooncake needs


def folders(sizes: Mapping[str, int], limit: int) -> list[list[Piece]]:
    """Returns the content of each folder: the files, largest first, cut where a folder is full."""
    packed: list[list[Piece]] = [[]]
    room = limit
    for name, size in sorted(sizes.items(), key=lambda file: (-file[1], file[0])):
        begin = 0
        while begin < size:
            if not room:
                packed.append([])
                room = limit
            end = min(size, begin + room)
            packed[-1].append(Piece(name, begin, end, size))
            room -= end - begin
            begin = end
    return packed


def set_of(name: str) -> str | None:
    """Returns the set of folders that a file of the wheel sglang-kernel belongs to; None: it is not
    needed on Hopper."""
    if name.endswith(".py") or ".dist-info/" in name or "/sm90/" in name:
        return BASE
    return FA3 if name.startswith("sgl_kernel/flash_ops") else None


def download(folder: Path) -> None:
    """Downloads the wheels. Raises CalledProcessError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder)]
    command += ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, "-r", str(PACKAGES)], check=True)


def pack_kernels(wheel: Path, folder: Path, kind: str) -> None:
    """Writes the archive of the files of the wheel sglang-kernel that belong to a set."""
    # The kernels of FlashAttention 3 resemble each other over hundreds of megabytes.
    window = 1 << (28 if kind == FA3 else 23)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": window}]
    with (
        zipfile.ZipFile(wheel) as packed,
        lzma.open(folder / KERNELS[kind], "wb", filters=filters) as output,
        tarfile.open(fileobj=output, mode="w|") as kernels,
    ):
        for info in packed.infolist():
            if not info.is_dir() and set_of(info.filename) == kind:
                member = tarfile.TarInfo(info.filename)
                member.size = info.file_size
                with packed.open(info) as content:
                    kernels.addfile(member, content)


def system_files(folder: Path) -> bool:
    """Downloads the system libraries of Mooncake; returns whether apt-get could."""
    try:
        command = ["apt-get", "download", "-qq", *SYSTEM]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return any(folder.glob(SYSTEM_FILES))


def main() -> None:
    """Prints one line per folder. Exits with status 2 if something cannot be downloaded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder; what it holds is replaced")
    parser.add_argument("--limit", type=float, default=50, help="MB per folder")
    parser.add_argument("--fa3", action="store_true", help="with FlashAttention 3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary)
        try:
            download(files)
        except subprocess.CalledProcessError:
            print(f"{PROGRAM}: pip cannot download {PACKAGES}", file=sys.stderr)
            raise SystemExit(2) from None
        if not system_files(files):
            print("without libibverbs1: Mooncake needs it, else the KV pool uses files")
        (wheel,) = files.glob("sglang_kernel-*.whl")
        kinds = (BASE, FA3) if options.fa3 else (BASE,)
        for kind in kinds:
            pack_kernels(wheel, files, kind)
        wheel.unlink()
        sizes = {file.name: file.stat().st_size for file in files.iterdir()}
        fa3 = {name: sizes.pop(name) for name in (KERNELS[FA3],) if name in sizes}
        shutil.rmtree(options.out, ignore_errors=True)
        for kind, content in zip(kinds, (sizes, fa3), strict=False):
            packed = folders(content, int(options.limit * 1e6))
            for folder, size in write_folders(options.out, files, packed, kind).items():
                print(f"{folder}: {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
