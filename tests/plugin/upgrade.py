"""Lists what an upgrade of SGLang would break: `python -m tests.plugin.upgrade`.

It reads the sources of the installed SGLang and of the newest one on the package index, which is
downloaded but not installed. For every ability of the plugin it looks up what the ability needs
(seer_sgl/plugin/needs.py). The exit status is 1 if the installed version lacks something; the list
of the newest version is information. `--version` asks for another version than the newest,
`--installed` for the installed one alone.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from seer_sgl.plugin.ability import Ability, lacked_by, switched_off
from seer_sgl.plugin.needs import lacking, needs_of, parameters
from seer_sgl.plugin.plugin import Plugin
from seer_sgl.plugin.sources import PACKAGE, Sources


def abilities() -> list[Ability]:
    """Returns all abilities, those of the CPU engine included."""
    return Plugin(on_cpu=True).abilities


def missing(sources: Sources) -> Iterator[str]:
    """Yields one line per need of an ability that a version of SGLang does not meet."""
    for ability in abilities():
        for line in lacking(ability.hooks, ability.files(), sources):
            yield f"{ability.name}: {line}"


def changed(before: Sources, after: Sources) -> Iterator[str]:
    """Yields the parameters of hooked or used functions that differ between two versions."""
    names = {hook.target for ability in abilities() for hook in ability.hooks}
    for ability in abilities():
        for file in ability.files():
            names |= needs_of(file).imports
            names |= {f"{owner}.{name}" for name, all_ in needs_of(file).members for owner in all_}
    for name in sorted(names):
        old, new = _shown(before, name), _shown(after, name)
        if new is not None and old != new:
            yield f"{name}\n    {old}\n    {new}"


def _shown(sources: Sources, name: str) -> str | None:
    found = parameters(sources, name)
    return None if found is None else f"({ast.unparse(found)})"


def wheel(folder: Path, number: str | None) -> Path | None:
    """Downloads the newest wheel, or that of a version, into `folder`, without its dependencies.

    Returns its path; None if the download fails.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--python-version", "3.12"]
    command += ["--platform", "manylinux_2_34_x86_64", "--dest", str(folder)]
    command += [PACKAGE if number is None else f"{PACKAGE}=={number}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"the wheel of SGLang cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    return next(iter(folder.glob("*.whl")), None)


def in_wheel(file: Path) -> Sources:
    """Returns the sources of the package in a wheel."""
    archive = zipfile.ZipFile(file)
    names = set(archive.namelist())
    return Sources(lambda path: archive.read(path).decode() if path in names else None)


def show(title: str, lines: list[str]) -> None:
    """Prints a list under its title."""
    print(f"{title}: {len(lines) or 'none'}")
    for line in lines:
        print(f"  {line}")


def main(arguments: list[str]) -> int:
    """Prints the lists; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", help="of SGLang; the newest by default")
    parser.add_argument("--installed", action="store_true")
    options = parser.parse_args(arguments)
    pinned = Sources.installed()
    gone = _show_lacks(pinned, f"{version(PACKAGE)}, installed")
    if not options.installed:
        with tempfile.TemporaryDirectory() as folder:
            file = wheel(Path(folder), options.version)
            if file is not None:
                other = in_wheel(file)
                _show_lacks(other, file.name.split("-")[1])
                show("functions whose parameters it changes", list(changed(pinned, other)))
    return 1 if gone else 0


def _show_lacks(sources: Sources, number: str) -> list[str]:
    """Prints what a version lacks, and which abilities are off; returns the former."""
    gone = list(missing(sources))
    show(f"SGLang {number}; what it lacks", gone)
    off = switched_off(abilities(), lacked_by(sources, number))
    show(f"SGLang {number}; abilities that are off", [f"{name}: {off[name]}" for name in off])
    return gone


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
