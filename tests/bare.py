"""The README's commands on a machine that has never run them: `make test-bare`, or this script.

A clone of this checkout, with a new HOME, empty caches and a PATH without a C++ compiler, runs
`make rollout` and then `make test`. With `--compiler` the PATH is the machine's, and with `--only
rollout` the second command is left out. As root, another user runs it if that user may read Python.

Counts are checked, not times: all samples came, KV was fetched, nothing was compiled once the
engines were ready, and requests waited for KV for less than 5 % of their time. The standard library
is enough: there is no environment yet.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What a slim image lacks.
BUILD_TOOLS = re.compile(
    r"(.*-)?(gcc|g\+\+|cc|c\+\+|cpp|c89|c99|ld|clang(\+\+)?|ninja|nvcc)(\..*|-\d.*)?"
)
READY = re.compile(r"\[(\S+ \S+)\] The server is fired up")
PACKAGES = ("pip", "uv", "matplotlib")  # caches without code for engines
# Variables about where packages come from: of the machine, not of its user.
FROM_NETWORK = re.compile(r"^(PIP|UV)_|_CERT|CERT_|_CA_|_PROXY$", re.IGNORECASE)
NOBODY = 65534
SAMPLES = 128  # of configs/cpu-seer.yaml
MOST_KV_WAIT = 0.05


def path_of(folder: Path) -> str:
    """Returns a PATH with the machine's commands, without those that build programs."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).glob("*"):
            link = folder / command.name
            if not BUILD_TOOLS.fullmatch(command.name) and not os.path.lexists(link):
                link.symlink_to(command)
    return str(folder)


def variables(folder: Path, *, compiler: bool) -> dict[str, str]:
    """Returns the environment of a user who has run nothing yet."""
    home, temporary = folder / "home", folder / "tmp"
    home.mkdir()
    temporary.mkdir()
    path = os.environ["PATH"] if compiler else path_of(folder / "bin")
    kept = {name: os.environ[name] for name in ("LANG", "SEER_PYTHON") if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if FROM_NETWORK.search(name)}
    for file in (".config/pip/pip.conf", ".config/uv/uv.toml", ".pip/pip.conf"):
        settings = Path.home() / file
        if settings.exists():
            (home / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(settings, home / file)
    kept.pop("UV_CACHE_DIR", None)
    return {**kept, "HOME": str(home), "TMPDIR": str(temporary), "PATH": path}


def other_user(folder: Path, environment: dict[str, str]) -> list[str]:
    """Returns the words before a command that make it another user's; none if that cannot be."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return []
    words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    python = environment.get("SEER_PYTHON", "python3")
    reads = subprocess.run(
        [*words, "sh", "-c", f"{python} -c 1 2>&-"], env=environment, check=False
    )
    if reads.returncode != 0:
        return []
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", folder], check=True)
    return words


def compiled_after(ready: float, folder: Path) -> Iterator[Path]:
    """Yields the files of caches that are newer than `ready`, in seconds since the epoch."""
    for place in (folder / "home", folder / "tmp", folder / "clone" / "seer_sgl"):
        for path in place.rglob("*"):
            parts = set(path.relative_to(folder).parts)
            cached = parts & {".cache", ".triton", "__pycache__"} or "inductor" in str(path)
            ours = cached and not parts & set(PACKAGES) and path.suffix != ".pyc"
            if ours and path.is_file() and path.stat().st_mtime > ready:
                yield path


def ready_at(logs: Path) -> float:
    """Returns when the last engine was ready, in seconds since the epoch."""
    found = [READY.search(log.read_text()) for log in sorted(logs.glob("e*.log"))]
    assert found and all(found), f"not all engines of {logs} became ready"
    stamps = [datetime.fromisoformat(match[1]).timestamp() for match in found if match]
    return max(stamps) + 1  # a stamp is local time, in whole seconds


def check(folder: Path) -> dict[str, Any]:
    """Checks what `make rollout` has left. Returns its figures."""
    out = folder / "clone" / "out"
    report = json.loads((out / "report.json").read_text())
    samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    names = {(sample["group_id"], sample["index"]) for sample in samples}
    assert len(samples) == len(names) == report["samples"] == SAMPLES, len(samples)
    assert report["cached_tokens"]["storage"] > 0, "no KV was fetched from the pool"
    seconds = sum(sample["finished_at"] - sample["started_at"] for sample in samples)
    waited = report["kv_wait_s"]
    assert waited < MOST_KV_WAIT * seconds, f"{waited:.1f} of {seconds:.1f} s waited for KV"
    late = list(compiled_after(ready_at(out / "engines"), folder))
    assert not late, f"compiled after the engines were ready: {late}"
    return {
        "samples": len(samples),
        "fetched_tokens": report["cached_tokens"]["storage"],
        "kv_wait_share": waited / seconds,
        "rollout_s": report["wall_s"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--compiler", action="store_true", help="keep the machine's PATH")
    parser.add_argument("--only", choices=["rollout"], help="leave `make test` out")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seer-sgl-bare-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        subprocess.run(["git", "clone", "--quiet", ROOT, folder / "clone"], check=True)
        environment = variables(folder, compiler=flags.compiler)
        user = other_user(folder, environment)
        print(f"{'another user' if user else 'this user'}, {folder}", flush=True)
        began = time.monotonic()
        for command in ("rollout",) if flags.only else ("rollout", "test"):
            run = subprocess.run(
                [*user, "make", command], cwd=folder / "clone", env=environment, check=False
            )
            if run.returncode != 0:
                print(f"make {command}: exit status {run.returncode}")
                return 1
            if command == "rollout":
                figures = check(folder) | {"from_clone_s": time.monotonic() - began}
                print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
