"""Breaks the package on purpose and counts how many of the faults the tests find.

    python -m tests.mutation --mutants 200 --seed 1 [--folder scheduling ...]

Each mutant is one change in a copy of the checkout, at a place chosen by the seed: a comparison
turned, a constant off by one, an `await` dropped, a branch removed. The tests of the gate that run
the line decide. Which ones do so is measured first, under coverage, and kept in out/ for the same
commit. A line that no test of the gate runs is no place for a mutant: its share is in the coverage.
"""

import argparse
import ast
import asyncio
import copy
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from coverage import CoverageData

from tests.support.tiers import TIERS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "seer_sgl"
TIMEOUT_S = 600  # a mutant may never end
MOST_TESTS = 60  # of those that run the line; a fault that so many miss counts as missed
# The gate, without its rules: under coverage everything costs more.
MARKERS = " and ".join(f"not {each}" for each in itertools.chain(*TIERS.values()))
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
Tests = dict[str, dict[int, set[str]]]  # by file and line, relative to ROOT


class Mutant(NamedTuple):
    """A change: the text at a place of a file, and what takes its place."""

    file: str
    line: int
    kind: str
    begin: int  # bytes from the start of the file
    end: int
    text: str

    @property
    def folder(self) -> str:
        """The first folder below the package; for files beside the folders, the file."""
        parts = Path(self.file).parts
        deep = parts[1] == "plugin" and parts[2] in ("speculation", "cpu")
        return "/".join(parts[1:3]) if deep else parts[1]


def mutants_of(path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    file = str(path.relative_to(ROOT))

    def mutant(kind: str, node: ast.expr | ast.stmt, text: str) -> Mutant:
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        return Mutant(file, node.lineno, kind, begin, end, text)

    for node in _code(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            turned = copy.deepcopy(node)
            turned.ops = [TURNED[type(node.ops[0])]()]
            yield mutant("comparison", node, f"({ast.unparse(turned)})")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield mutant("constant", node, str(node.value + 1))
        elif isinstance(node, ast.Await):
            yield mutant("await", node, f"({ast.unparse(node.value)})")
        elif isinstance(node, ast.If):
            yield mutant("branch", node.test, "False")


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of functions; constants and annotations outside run at import only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from ast.walk(statement)


def measured() -> Tests:
    """Returns which tests of the gate run which lines; runs them if that is not known yet."""
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    data = ROOT / "out" / "mutation" / f"{head}.coverage"
    if not data.exists():
        data.parent.mkdir(parents=True, exist_ok=True)
        command = ["-m", "coverage", "run", "--source=seer_sgl", f"--data-file={data}.new"]
        gate = ["-m", "pytest", "-p", "tests.support.contexts", "-m", MARKERS]
        command += [*gate, "--hypothesis-profile=ci"]
        subprocess.run([sys.executable, *command], cwd=ROOT, check=False)
        Path(f"{data}.new").rename(data)
    found = CoverageData(str(data))
    found.read()
    return {
        str(Path(file).relative_to(ROOT)): {
            line: set(tests) - {""} for line, tests in found.contexts_by_lineno(file).items()
        }
        for file in found.measured_files()
    }


def chosen(tests: Tests, count: int, seed: int, folders: list[str]) -> list[Mutant]:
    """Returns `count` mutants of lines that tests run, the same ones for the same seed."""
    every = {
        mutant
        for path in sorted(PACKAGE.rglob("*.py"))
        for mutant in mutants_of(path)
        if tests.get(mutant.file, {}).get(mutant.line) and (not folders or mutant.folder in folders)
    }
    return random.Random(seed).sample(sorted(every), min(count, len(every)))


def some_of(tests: set[str], file: str, seed: int) -> list[str]:
    """Returns at most MOST_TESTS of the tests, those of the file's own folder first."""
    own = str(Path("tests", *Path(file).parts[1:-1]))
    drawn = random.Random(seed).sample(sorted(tests), len(tests))
    return sorted(drawn, key=lambda test: not test.startswith(own))[:MOST_TESTS]


async def survives(mutant: Mutant, tests: list[str], tree: Path) -> bool:
    """Returns whether the tests pass with the mutant in place. `tree`: a copy of the checkout."""
    path = tree / mutant.file
    source = path.read_bytes()
    path.write_bytes(source[: mutant.begin] + mutant.text.encode() + source[mutant.end :])
    try:
        return await pass_(tests, tree)
    finally:
        path.write_bytes(source)


async def pass_(tests: list[str], tree: Path) -> bool:
    """Returns whether the tests pass, one after the other."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-x", "-q", "--hypothesis-profile=ci"),
        # A loop that a dropped `await` makes endless swallows the exception of a signal.
        *("-p", "no:cacheprovider", "--timeout=60", "--timeout-method=thread", *tests),
        cwd=tree,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await process.wait() == 0
    except TimeoutError:
        process.kill()
        await process.wait()
        return False


async def run(mutants: list[Mutant], tests: Tests, workers: int) -> list[Mutant]:
    """Returns the mutants that no test found."""
    covering = [
        some_of(tests[each.file][each.line], each.file, i) for i, each in enumerate(mutants)
    ]
    left, missed = list(zip(mutants, covering, strict=True)), []

    async def work(tree: Path) -> None:
        while left:
            mutant, deciding = left.pop(0)
            if not deciding or await survives(mutant, deciding, tree):
                missed.append(mutant)
                print(
                    f"missed {mutant.file}:{mutant.line} {mutant.kind}: {mutant.text}", flush=True
                )

    with tempfile.TemporaryDirectory(prefix="seer-sgl-mutation-") as folder:
        trees = [Path(folder) / str(number) for number in range(workers)]
        for tree in trees:
            ignored = shutil.ignore_patterns(".venv*", ".git", "out", "__pycache__", ".mypy_cache")
            shutil.copytree(ROOT, tree, ignore=ignored)
        if not await pass_(sorted(set().union(*covering)), trees[0]):
            raise SystemExit("the tests fail without a mutant")
        async with asyncio.TaskGroup() as group:
            for tree in trees:
                group.create_task(work(tree))
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", action="append", default=[])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))

    flags = parser.parse_args()
    tests = measured()
    mutants = chosen(tests, flags.mutants, flags.seed, flags.folder)
    missed = asyncio.run(run(mutants, tests, flags.workers))
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for mutant in mutants:
        counts[mutant.folder][0] += 1
    for mutant in missed:
        counts[mutant.folder][1] += 1
    print(f"{'folder':24}{'mutants':>8}{'found':>8}")
    for folder, (all_, lost) in sorted(counts.items()):
        print(f"{folder:24}{all_:8}{100 * (all_ - lost) / all_:7.0f}%")


if __name__ == "__main__":
    main()
