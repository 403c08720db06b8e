"""The rule of the stand-ins: an installed package is used, never its stand-in."""

import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def refuse_if_installed(name: str, distribution: str) -> None:
    """Raises ImportError if the real package can be imported, or its distribution is installed.

    A stand-in is found first only if its folder was put before the others on sys.path.
    """
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != FOLDER]
    found = PathFinder.find_spec(name, others)
    if found is not None and found.origin is not None:  # not a folder without a package in it
        raise ImportError(f"the stand-in of {name} is before the real one: {found.origin}")
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        return
    raise ImportError(f"the stand-in of {name} is before {distribution} {installed}")
