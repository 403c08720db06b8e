"""What a session compiles, carried from one machine to the next.

Kernels are compiled at the first start of an engine: minutes, each time on a machine that is bare.
A session keeps all of them in one folder beside its results, and `python -m bench.gpu` packs that
folder into pieces that fit a transfer. Triton stores absolute paths, so the results have to be at
the same path on the next machine.
"""

import contextlib
import io
import tarfile
from pathlib import Path

PIECE = 15 << 20  # bytes of a file: some transfers take 16 MiB
MOST = 3 * PIECE
PART = ".tar.gz."  # in the name of a piece, before its number

# Where each compiler keeps its results; a folder's name by environment variable.
FOLDERS = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_JIT_CACHE_DIR": "sglang/jit",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "NUMBA_CACHE_DIR": "numba",
}


def folder_of(out: Path) -> Path:
    """Returns the folder of a session's caches, beside its results `out`."""
    return out.with_name(f"{out.name}.caches")


def variables(folder: Path) -> dict[str, str]:
    """Returns the environment of programs that keep what they compile in `folder`."""
    return {name: str(folder / sub) for name, sub in FOLDERS.items()}


def pack(folder: Path, copies: Path, most: int = MOST, piece: int = PIECE) -> int:
    """Writes the caches into pieces in the folder `copies`; replaces those of an earlier call.

    What was compiled first comes first, and what does not fit into `most` bytes is left out: it is
    compiled again. Returns the number of files that were left out.
    """
    packed, left_out = io.BytesIO(), 0
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as tar:
        for path, size in _files(folder):
            # A compressed file is hardly larger than it was.
            if packed.tell() + size > most:
                left_out += 1
                continue
            with contextlib.suppress(FileNotFoundError):  # compilers move files while this reads
                tar.add(path, str(path.relative_to(folder)))
    for path in _pieces(copies, folder.name):
        path.unlink()
    content = packed.getvalue()
    copies.mkdir(parents=True, exist_ok=True)
    for number, begin in enumerate(range(0, len(content), piece)):
        part = content[begin : begin + piece]
        (copies / f"{folder.name}{PART}{number}").write_bytes(part)
    return left_out


def unpack(copies: Path, folder: Path) -> bool:
    """Fills the caches from the pieces in `copies`, unless there are caches. Returns whether it
    did. Raises OSError, EOFError or tarfile.TarError if the pieces are not whole."""
    pieces = _pieces(copies, folder.name)
    if folder.exists() or not pieces:
        return False
    content = io.BytesIO(b"".join(path.read_bytes() for path in pieces))
    with tarfile.open(fileobj=content) as tar:
        tar.extractall(folder, filter="data")
    return True


def _files(folder: Path) -> list[tuple[Path, int]]:
    """Returns the files and their bytes, in the order in which they were compiled."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and not path.is_symlink():
                status = path.stat()
                found.append((status.st_mtime_ns, path, status.st_size))
    return [(path, size) for _, path, size in sorted(found)]


def _pieces(copies: Path, name: str) -> list[Path]:
    pieces = copies.glob(f"{name}{PART}*")
    return sorted(pieces, key=lambda path: int(path.suffix[1:]))
