"""Measures the rollout server under load: many callers, fake engines, `sglang_router` beside it.

`python -m bench.server --json`: 2,000 callers for 60 s per arm and round; one request in ten
streams, of one in fifty the caller hangs up. Arms: the fakes alone (`direct`), SGLang's router in
front of them, and the server; they alternate. Callers, fakes, router and server are processes of
their own. Reported per arm: CPU per request of the process in the middle, latency beyond the
direct one, and how the requests ended.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import uvloop

from bench.server_load import Callers, Load, Result
from seer_sgl.engine.launch.process import engine_environment
from seer_sgl.engine.session import raise_file_limit
from seer_sgl.processes.child import free_port

ROOT = Path(__file__).resolve().parent.parent
ROUTER = "bench.full.router_process"
READY_S = 120.0
SETTLE_S = 30.0
SAMPLE_S = 0.5


class Target(NamedTuple):
    """What the callers talk to. `process`: between them and the fakes; None: nothing is."""

    name: str
    url: str
    process: "subprocess.Popen[str] | None"


def started(*command: str, quiet: bool = False) -> "subprocess.Popen[str]":
    """Starts a Python module as a process of its own. `quiet`: without its log."""
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=engine_environment(None),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
    )


def line_of(process: "subprocess.Popen[str]", ask: bool = False) -> str:
    """Returns the next line that a process prints, if wanted after a line to it."""
    assert process.stdin is not None and process.stdout is not None
    if ask:
        process.stdin.write("\n")
        process.stdin.flush()
    return process.stdout.readline()


@contextlib.contextmanager
def targets(options: argparse.Namespace) -> Iterator[tuple[list[Target], list[str]]]:
    """Starts fakes, router and server; yields the targets and the URLs of the fakes."""
    fake = {
        "count": options.engines,
        "longest": options.longest,
        "delay_s": options.delay_s,
        "max_total_num_tokens": 1 << 40,
        "max_running_requests": 1 << 16,
    }
    processes = [started("tests.fake_sglang", json.dumps(fake), quiet=True)]
    try:
        urls: list[str] = json.loads(line_of(processes[0]))
        found = [Target("direct", urls[0], None)]
        config = {
            "engines": {"launch": "external", "urls": urls},
            "scheduling": {"chunk_tokens": options.chunk_tokens},
            "server": {"port": 0},
        }
        processes.append(started("bench.server_process", json.dumps(config)))
        found.append(Target("server", line_of(processes[1]).strip(), processes[1]))
        if not options.without_router:
            router = _start_router(urls)
            processes.append(router.process)  # type: ignore[arg-type]
            found.append(router)
        yield found, urls
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _start_router(urls: Sequence[str]) -> Target:
    port, metrics = str(free_port()), str(free_port())
    where = ("--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics)
    policy = ("--policy", "cache_aware", "--log-level", "error", "--worker-urls", *urls)
    process, url = started(ROUTER, *where, *policy), f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, KeyError):
            workers = _get(f"{url}/workers")["workers"]
            if sum(bool(worker["is_healthy"]) for worker in workers) == len(urls):
                return Target("router", url, process)
        time.sleep(0.2)
    process.kill()
    raise SystemExit("sglang_router did not start")


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return json.load(reply)


def engine_calls(urls: Sequence[str]) -> int:
    """Returns the number of calls that the fakes have answered."""
    return sum(int(_get(f"{url}/v1/loads")["loads"][0]["decode_moments"][0]) for url in urls)


class Memory:
    """Samples a process's memory in a thread; `mb`: over the time of the block."""

    def __init__(self, process: psutil.Process | None) -> None:
        self.mb: list[float] = []
        self._process = process
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while self._process is not None and not self._ended.wait(SAMPLE_S):
            self.mb.append(self._process.memory_info().rss / 1e6)


def measure(target: Target, urls: Sequence[str], load: Load) -> dict[str, Any]:
    """Runs the callers against a target once. Returns the figures."""
    process = None if target.process is None else psutil.Process(target.process.pid)
    calls, cpu = engine_calls(urls), _cpu_s(process)
    with Memory(process) as memory:
        callers = Callers(f"{target.url}/generate", load)
        result = uvloop.run(callers.run())
    cpu_s = _cpu_s(process) - cpu
    figures = _figures(target.name, result, engine_calls(urls) - calls)
    if process is not None:
        figures["cpu_us_per_request"] = round(cpu_s / result.sent * 1e6, 1)
        figures["memory_mb"] = _quarters(memory.mb)
    if target.name == "server":
        assert target.process is not None
        figures["left_over"] = _settled(target.process)
    return figures


def _figures(name: str, result: Result, calls: int) -> dict[str, Any]:
    counts = msgspec.structs.asdict(result)
    seconds = sorted(counts.pop("seconds"))
    return {
        "arm": name,
        **counts,
        "errors": dict(result.errors),
        "engine_calls": calls,
        "p50_ms": round(seconds[len(seconds) // 2] * 1e3, 2),
        "p99_ms": round(seconds[len(seconds) * 99 // 100] * 1e3, 2),
    }


def _cpu_s(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return float(times.user + times.system)


def _quarters(mb: Sequence[float]) -> list[float]:
    """Returns the highest memory in each quarter of the time."""
    size = max(1, len(mb) // 4)
    return [round(max(mb[start : start + size]), 1) for start in range(0, size * 4, size)]


def _settled(server: "subprocess.Popen[str]") -> dict[str, Any]:
    """Returns the server's state once its groups are closed and its engines idle."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        state: dict[str, Any] = json.loads(line_of(server, ask=True))
        idle = not (state["in_progress"] or state["open_groups"] or state["breaches"])
        if idle or time.monotonic() > deadline:
            return state
        time.sleep(0.5)


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the medians of each arm over its rounds, and its latency beyond the direct one."""
    medians: dict[str, dict[str, float]] = {}
    for arm in dict.fromkeys(each["arm"] for each in rounds):
        mine = [each for each in rounds if each["arm"] == arm]
        medians[arm] = {
            key: statistics.median(each[key] for each in mine)
            for key in ("cpu_us_per_request", "p50_ms", "p99_ms")
            if key in mine[0]
        }
    for arm, median in medians.items():
        if arm != "direct":
            for key in ("p50_ms", "p99_ms"):
                median[f"added_{key}"] = round(median[key] - medians["direct"][key], 2)
    return medians


def main() -> None:
    """Measures all arms, round by round; prints one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--callers", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--input-tokens", type=int, default=256)
    parser.add_argument("--longest", type=int, default=64, help="tokens of the longest response")
    parser.add_argument("--chunk-tokens", type=int, default=256)
    parser.add_argument("--delay-s", type=float, default=2.0, help="of each answer of a fake")
    parser.add_argument("--think-s", type=float, default=8.0, help="most, between two requests")
    parser.add_argument("--stream-every", type=int, default=10, help="one request of so many")
    parser.add_argument("--without-router", action="store_true")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    raise_file_limit()
    load = Load(
        callers=options.callers,
        seconds=options.seconds,
        input_tokens=options.input_tokens,
        longest=options.longest,
        think_s=options.think_s,
        hang_up_s=options.delay_s,
        stream_every=options.stream_every,
    )
    rounds = []
    with targets(options) as (found, urls):
        for _ in range(options.rounds):
            for target in found:
                rounds.append(measure(target, urls, load))
                if not options.json:
                    print(json.dumps(rounds[-1]), flush=True)
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    print(json.dumps({"settings": settings, "summary": summary(rounds), "rounds": rounds}))


if __name__ == "__main__":
    main()
