"""Prints the packages of another SGLang on a CPU: `python -m tests.plugin.pins WHEEL`.

They are those of requirements-cpu.txt, with the versions that the wheel pins. Packages that the
wheel needs beyond these are listed on standard error; without a GPU most of them are not imported.
"""

import re
import sys
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements-cpu.txt"
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*(?:==([^\s;,]+))?")


def pinned(line: str) -> tuple[str, str | None]:
    """Returns a requirement's normalized name, and its version if it has exactly one."""
    found = _PIN.match(line)
    assert found is not None, line
    return re.sub(r"[-_.]+", "-", found[1]).lower(), found[2]


def requirements(wheel: Path) -> Iterator[str]:
    """Yields what a wheel requires on Linux without extras."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        headers = HeaderParser().parsestr(archive.read(name).decode())
    yield f"sglang=={headers['Version']}"
    for line in headers.get_all("Requires-Dist", []):
        if "extra ==" not in line and "aarch64" not in line:
            yield line


def merged(own: list[str], wanted: list[str]) -> tuple[list[str], list[str]]:
    """Returns our pinned packages with the versions that a wheel wants, and the other packages
    that it wants."""
    versions = dict(map(pinned, wanted))
    ours = dict(pinned(line) for line in own if not line.startswith("#"))
    lines = [f"{name}=={versions.get(name) or version}" for name, version in ours.items()]
    return lines, sorted(versions.keys() - ours.keys())


def main(wheel: Path) -> None:
    """Prints the requirements."""
    own = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    lines, others = merged(own, list(requirements(wheel)))
    print("\n".join(lines))
    print(f"left out: {' '.join(others)}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
