"""Lists the names that an upgrade of SGLang would break: `python -m tests.plugin.upgrade`.

It reads the sources of the installed SGLang and of the newest one on the package index, which is
downloaded but not installed. It looks up every name that the plugin uses: targets of hooks,
imports, and members of objects (seer_sgl/plugin/sglang_types.py). The exit status is 1 if the
installed version lacks a name; the list of the newest version is information.
"""

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import seer_sgl.plugin
from seer_sgl.plugin import sglang_types
from seer_sgl.plugin.plugin import Plugin

from .sources import PACKAGE, Sources

PLUGIN = Path(seer_sgl.plugin.__file__).parent


def targets() -> list[str]:
    """Returns the targets of all hooks, those of the CPU engine included."""
    return sorted({hook.target for hook in Plugin(on_cpu=True).hooks})


def imports() -> list[str]:
    """Returns the names that the plugin imports from SGLang."""
    names = set()
    for file in PLUGIN.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PACKAGE}."):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return sorted(names)


def members() -> Iterator[tuple[str, Sequence[str]]]:
    """Yields each member of SGLang's objects that the plugin uses, with the classes that may
    define it. The docstring of its Protocol names these classes."""
    for protocol in protocols():
        classes = [
            word for word in (protocol.__doc__ or "").split() if word.startswith(f"{PACKAGE}.")
        ]
        for name in sorted({**protocol.__annotations__, **vars(protocol)}):
            if not name.startswith(("__", "seer_", "_abc_", "_is_")):
                yield name, classes


def protocols() -> list[type]:
    """Returns the Protocols of SGLang's objects."""
    return [value for name, value in vars(sglang_types).items() if name.startswith("Sgl")]


def missing(sources: Sources) -> Iterator[str]:
    """Yields one line per name that a version of SGLang lacks."""
    names = {"hook": targets(), "import": imports()}
    used = [(kind, *name.rpartition(".")[::2]) for kind, each in names.items() for name in each]
    for kind, owner, name in used:
        if sources.find(f"{owner}.{name}") is None:
            yield f"{kind} {name} of {owner}{_if_gone(sources, owner)}"
    for name, classes in members():
        if not any(sources.find(f"{owner}.{name}") for owner in classes):
            yield f"member {name} of {classes[0]}{_if_gone(sources, classes[0])}"


def _if_gone(sources: Sources, owner: str) -> str:
    return "" if sources.find(owner) else ", which is gone"


def changed(before: Sources, after: Sources) -> Iterator[str]:
    """Yields the signatures of hooked or called functions that differ between two versions."""
    called = [f"{owner}.{name}" for name, classes in members() for owner in classes]
    for name in (*targets(), *imports(), *called):
        old, new = before.signature(name), after.signature(name)
        if new is not None and old != new:
            yield f"{name}\n    {old}\n    {new}"


def newest(folder: Path) -> Path | None:
    """Downloads the newest wheel into `folder`, without its dependencies.

    Returns its path; None if the download fails.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--python-version", "3.12"]
    command += ["--platform", "manylinux_2_34_x86_64", "--dest", str(folder)]
    done = subprocess.run([*command, PACKAGE], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"the wheel of SGLang cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    return next(iter(folder.glob("*.whl")), None)


def show(title: str, lines: list[str]) -> None:
    """Prints a list under its title."""
    print(f"{title}: {len(lines) or 'none'}")
    for line in lines:
        print(f"  {line}")


def main() -> int:
    """Prints both lists; returns the exit status."""
    pinned = Sources.installed()
    gone = list(missing(pinned))
    show(f"SGLang {version(PACKAGE)}, installed; names that it lacks", gone)
    with tempfile.TemporaryDirectory() as folder:
        wheel = newest(Path(folder))
        if wheel is not None:
            latest = Sources.wheel(wheel)
            number = wheel.name.split("-")[1]
            show(f"SGLang {number}, the newest; names that it lacks", list(missing(latest)))
            show("functions whose parameters it changes", list(changed(pinned, latest)))
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
