"""Files that are written on a disk that returns errors."""

import io
import os
import resource
from pathlib import Path

import pytest

from seer_sgl.errors import ConfigError
from seer_sgl.files import LineFile, make_out_folder, write_whole


def test_a_line_that_does_not_fit_leaves_no_trace(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        for _ in range(3):
            file.append(b"a" * 299 + b"\n")
        for _ in range(2):
            with pytest.raises(OSError, match="File too large"):
                file.append(b"b" * 299 + b"\n")
            assert file.path.read_bytes() == (b"a" * 299 + b"\n") * 3
        file.append(b"c" * 99 + b"\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    file.append(b"d\n")
    file.close()
    assert file.path.read_bytes() == (b"a" * 299 + b"\n") * 3 + b"c" * 99 + b"\nd\n"


def test_a_file_that_does_not_fit_leaves_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_whole(path, b"earlier")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_whole(path, b"a" * 1001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"earlier"
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_earlier_file_stays_until_there_is_something_to_write(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("earlier\n")
    first, second = LineFile(path), LineFile(path)
    assert path.read_text() == "earlier\n"
    first.append(b"new\n")
    assert path.read_text() == "new\n"
    first.close()
    second.close()
    assert path.read_text() == ""


def test_the_first_line_is_written_although_no_more_files_may_be_opened(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    held: list[io.FileIO] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                held.append(io.FileIO(os.devnull))
        file.append(b"a line\n")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for taken in held:
            taken.close()
    file.close()
    assert file.path.read_bytes() == b"a line\n"


def test_a_folder_that_takes_no_files_is_refused_before_the_work() -> None:
    with pytest.raises(ConfigError, match=r"^--out /proc: "):
        make_out_folder(Path("/proc"))
