"""A session that is cut at any moment loses no measurement, and cut parts come again."""

import json
import os
import random
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import __main__ as background
from bench.gpu import caches
from bench.gpu.machine import write_json
from bench.gpu.parts import Part
from bench.gpu.results import Results
from bench.gpu.session import GRACE_S, Measuring, lock, waiting

PARTS = {"machine": 5, "kernels": 60, "steps": 120, "shapes": 200, "exact": 150}  # in seconds
EVERY = [Part(name, ()) for name in PARTS]
ROW_S = 10  # between two results of a part
COMMAND_S = (100.0, 600.0)  # the length of a call
END = ("time", "asked to stop", "session killed", "machine gone")


class Killed(BaseException):
    """The session ends here, and does nothing more."""


class Fake:
    """A machine whose parts write a row every few seconds of a clock that nobody waits for."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.out = folder / "out"
        self.results = Results(self.out, folder / "out.tar.gz")
        self.measured: set[str] = set()
        self.packed: set[str] = set()
        self.ends: Callable[[], None] = lambda: None
        self.tries = 0

    def run(
        self, part: Part, log: Path, seconds: float, *, meanwhile: Callable[[], bool]
    ) -> dict[str, Any]:
        log.write_text("begun")
        self.tries += 1
        began, rows = self.now, []
        while self.now - began < PARTS[part.name]:
            self.now += ROW_S
            if self.now - began > seconds:
                return self._ended(began, cut=True)
            rows.append(f"{part.name}, try {self.tries}, {self.now - began:.0f} s")
            write_json(self.out / f"{part.name}.json", rows)
            self.measured.add(rows[-1])
            self.ends()
            if meanwhile():
                return self._ended(began, cut=True)
            self.packed |= self.measured
        return self._ended(began, cut=False)

    def _ended(self, began: float, *, cut: bool) -> dict[str, Any]:
        self.packed |= self.measured
        return {"status": -15 if cut else 0, "cut": cut, "seconds": self.now - began}

    def measuring(self) -> Measuring:
        """Returns a session with this clock and these parts."""
        return Measuring(self.results, run_part=self.run, clock=lambda: self.now)

    def offer(self) -> list[Part]:
        return waiting(EVERY, self.results.record(), [])

    def rows(self) -> set[str]:
        """Returns all rows in the archive, also of tries that were cut."""
        found: set[str] = set()
        with tarfile.open(self.results.archive) as tar:
            for member in tar:
                if member.name.endswith(".json") and not member.name.endswith("session.json"):
                    file = tar.extractfile(member)
                    assert file is not None
                    found |= set(json.load(file))
        return found


def calls(fake: Fake, dice: random.Random) -> Iterator[str]:
    """Runs a session again and again; each ends in one of the ways of END. Yields the way."""
    while fake.offer():
        end, at = dice.choice(END), fake.now + dice.uniform(0, 500)
        measuring = fake.measuring()

        def ends(end: str = end, at: float = at, measuring: Measuring = measuring) -> None:
            if fake.now >= at and end == "asked to stop":
                measuring.stop()
            elif fake.now >= at and end != "time":
                raise Killed

        fake.ends = ends
        try:
            measuring.measure(fake.offer, dice.uniform(*COMMAND_S))
        except Killed:
            if end == "machine gone":
                shutil.rmtree(fake.out)
                fake.results = Results(fake.out, fake.results.archive)
                assert fake.results.restore(fake.results.archive)
                fake.measured &= fake.packed  # what followed the last archive is gone
        yield end


@pytest.mark.parametrize("seed", range(12))
def test_what_was_measured_is_kept_and_what_was_cut_is_offered_again(
    tmp_path: Path, seed: int
) -> None:
    fake = Fake(tmp_path)
    for number, end in enumerate(calls(fake, random.Random(seed))):
        fake.results.pack()
        assert fake.rows() >= fake.measured, end
        assert number < 100, "the session comes to its end"
    done = fake.results.record()
    assert list(done) == list(PARTS)
    assert not any(one["cut"] or one["status"] for one in done.values())
    for name, seconds in PARTS.items():
        last = json.loads((fake.out / f"{name}.json").read_text())
        assert len(last) == -(-seconds // ROW_S), "the last try is whole, and stands in its place"


def test_kernels_that_arrive_while_a_session_measures_bring_parts(tmp_path: Path) -> None:
    fake = Fake(tmp_path)

    def offer() -> list[Part]:
        parts = [Part("machine", ()), Part("steps", ()), Part("exact", ())]
        done = fake.results.record()
        if "machine" in done:
            parts[1:1] = [Part("kernels", ())]
        return waiting(parts, done, [])

    assert fake.measuring().measure(offer, 3600.0)
    assert list(fake.results.record()) == ["machine", "kernels", "steps", "exact"]


def test_a_part_that_ends_the_machine_does_not_keep_the_others_from_their_turn(
    tmp_path: Path,
) -> None:
    fake = Fake(tmp_path)
    fake.results.begin("machine")
    assert [part.name for part in fake.offer()] == [
        "kernels",
        "steps",
        "shapes",
        "exact",
        "machine",
    ]


def test_a_part_that_the_time_ends_leaves_time_to_write(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.measuring().measure(fake.offer, 150 + GRACE_S)
    assert fake.now <= 150 + ROW_S
    assert fake.results.record()["steps"]["cut"]


def test_a_second_try_leaves_the_first_where_it_can_be_found(tmp_path: Path) -> None:
    results = Results(tmp_path / "out", tmp_path / "out.tar.gz")
    for name in ("shapes-2", "shapes-2-long"):
        results.begin(name).write_text("log")
        (results.out / name).mkdir()
        (results.out / name / "rounds.jsonl").write_text("{}")
    results.begin("shapes-2")
    assert not (results.out / "shapes-2").exists(), "a benchmark wants a folder without results"
    kept = {str(path.relative_to(results.out)) for path in results.out.rglob("*.*")}
    assert kept == {
        "session.json",
        "earlier/1/shapes-2.log",
        "earlier/1/shapes-2/rounds.jsonl",
        "shapes-2-long.log",
        "shapes-2-long/rounds.jsonl",
    }


def test_an_archive_does_not_replace_results(tmp_path: Path) -> None:
    results = Results(tmp_path / "out", tmp_path / "out.tar.gz")
    results.begin("machine")
    assert not results.restore(results.archive)
    elsewhere = Results(tmp_path / "other", tmp_path / "other.tar.gz")
    assert elsewhere.restore(results.archive)
    assert elsewhere.record() == results.record()


def test_one_session_at_a_time_measures_into_a_folder(tmp_path: Path) -> None:
    place = background.Place.of(tmp_path / "out")
    assert not place.running()
    held = lock(tmp_path / "out")
    assert held is not None
    assert place.running()


def test_what_is_watched_is_printed_once_and_copied_when_it_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = background.Place.of(tmp_path / "out")
    archive, copies = tmp_path / "out.tar.gz", tmp_path / "copies"
    place.printed.write_text("of an earlier session\n")
    watch = background.Watch(place, archive, copies)
    watch.look()
    assert not copies.exists()
    with place.printed.open("a") as printed:
        printed.write("kernels ...\n")
    archive.write_bytes(b"one")
    watch.look()
    watch.look()
    assert capsys.readouterr().out == "kernels ...\n"
    assert (copies / archive.name).read_bytes() == b"one"
    archive.unlink()
    archive.write_bytes(b"two")
    watch.look()
    assert [path.read_bytes() for path in copies.iterdir()] == [b"two"]


@pytest.mark.parametrize("name", ["out.tar.gz", "out.caches.tar.gz.0"])
def test_a_file_that_is_no_archive_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / name).write_text("no archive")
    options = [str(tmp_path / "out"), "--restore", str(tmp_path / "copies")]
    monkeypatch.setattr(sys, "argv", ["bench.gpu", *options])
    with pytest.raises(SystemExit) as ended:
        background.main()
    assert ended.value.code == 2
    assert "--restore" in capsys.readouterr().err


def test_what_was_compiled_moves_in_pieces_to_the_same_path(tmp_path: Path) -> None:
    folder, copies = caches.folder_of(tmp_path / "out"), tmp_path / "copies"
    dice = random.Random(0)
    contents = {f"triton/{name}/kernel.cubin": dice.randbytes(500_000) for name in "abc"}
    for number, (name, content) in enumerate(contents.items()):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(content)
        os.utime(folder / name, (number, number))
    assert caches.pack(folder, copies, piece=200_000) == 0
    assert max(path.stat().st_size for path in copies.iterdir()) == 200_000
    assert not caches.unpack(copies, folder), "what is here is newer"
    shutil.rmtree(folder)
    assert caches.unpack(copies, folder)
    assert {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.*")} == contents
    assert caches.pack(folder, copies, most=1_200_000) == 1, "those compiled last are left out"
    shutil.rmtree(folder)
    caches.unpack(copies, folder)
    assert {path.parent.name for path in folder.rglob("*.cubin")} == {"a", "b"}
