"""`make abuse`: a server of two real engines between honest and hostile clients.

python -m tests.abuse                       # ten minutes
python -m tests.abuse --minutes 60 --seed 3

Honest clients compare every answer with that of a plain, undivided engine, before, beside and after
the hostile ones. Prints one JSON object last. Exit status 1 if an answer is lost or differs, if a
process dies, if any client gets a status of 500 or more, if a wrong token opens anything, if memory
or descriptors grow, or if the server logs an error.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from seer_sgl.engine.session import raise_file_limit
from tests.e2e.served import Serving

from .honest import Answer, Clients, Job, jobs, reference
from .hostile import ANYONE, Evil, Hostile
from .rig import plain_engine, serving
from .watch import Watch

HONEST = 12  # clients at once
SETTLE_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of the hostile clients")
    parser.add_argument("--seed", type=int, default=1, help="of what the clients draw")
    parser.add_argument("--out", type=Path, default=Path("out/abuse"), help="folder for logs")
    options = parser.parse_args()
    raise_file_limit()
    wanted = jobs()
    folder = options.out / str(options.seed)
    with plain_engine(folder / "plain") as url:
        expected = asyncio.run(reference(url, wanted))
    line(f"{len(wanted)} requests, {sum(each.tokens for each in expected.values())} tokens")
    with serving(folder) as it:
        figures = asyncio.run(abuse(it, wanted, expected, options))
    print(json.dumps(figures))
    sys.exit(bool(figures["problems"]))


def line(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


async def abuse(
    it: Serving, wanted: list[Job], expected: dict[str, Answer], options: argparse.Namespace
) -> dict[str, Any]:
    """Returns the figures, and `problems`: a line per broken promise."""
    clients = Clients(it.url, wanted, expected)
    await clients.all_once()
    line("all answered before the abuse")
    watch, ended = Watch(it.process), asyncio.Event()
    hostile = Hostile(it.url, engine_urls(it), options.seed)
    watching = asyncio.create_task(watch.run())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(hostile.run(ended))
        for number in range(HONEST):
            tasks.create_task(clients.run(ended, options.seed * 100 + number))
        until = time.monotonic() + options.minutes * 60
        while time.monotonic() < until:
            await asyncio.sleep(min(60.0, max(0.0, until - time.monotonic())))
            tally, seen = clients.tally, hostile.seen
            line(
                f"{tally.answered} answered, {len(tally.lost)} lost, {len(tally.different)} "
                f"different; {seen.answers.total()} hostile, {len(seen.failed)} of them failed; "
                f"{len(watch.ended())} processes ended"
            )
        ended.set()
    watching.cancel()
    line("the hostile clients have left")
    await clients.all_once()
    left = await settled(it)
    tally, seen = clients.tally, hostile.seen
    problems = [
        *(f"lost: {each}" for each in tally.lost),
        *(f"different: {each}" for each in tally.different),
        *(f"ended: {each}" for each in watch.ended()),
        *(f"failed: {each}" for each in seen.failed),
        *(f"let in: {each}" for each in seen.let_in),
        *watch.problems(),
        *left,
        *(f"logged: {each}" for each in errors_in(it.log)),
    ]
    if Evil.PLACE.exists():
        problems.append("a pickle was run")
    for name, count in sorted(seen.answers.items()):
        line(f"  {count:6} {name}")
    for problem in problems[:50]:
        line(f"PROBLEM: {problem}")
    return {
        "minutes": options.minutes,
        "seed": options.seed,
        "answered": tally.answered,
        "by_path": tally.by_path,
        "identical_tokens": tally.tokens,
        "lost": len(tally.lost),
        "different": len(tally.different),
        "median_s": round(statistics.median(tally.seconds), 2),
        "longest_s": round(max(tally.seconds), 2),
        "hostile": seen.answers.total(),
        "answers": dict(sorted(seen.answers.items())),
        "failed": len(seen.failed),
        "let_in": len(seen.let_in),
        "processes_ended": len(watch.ended()),
        "parts": watch.parts(),
        "problems": problems,
    }


def engine_urls(it: Serving) -> list[str]:
    """Returns the URLs of the engines' own ports, which the server's log names."""
    found = re.findall(r"^engine \S+ ready after .*: (http://\S+),", it.log.read_text(), re.M)
    assert found, it.log
    return found


def errors_in(log: Path) -> list[str]:
    """Returns the server's own errors, with their line: clients must not be able to cause any."""
    lines = log.read_text(errors="replace").splitlines()
    return [
        f"{number}: {text}"
        for number, text in enumerate(lines, 1)
        if text.startswith(("Traceback", "error:", "critical:"))
    ]


async def settled(it: Serving) -> list[str]:
    """Returns what is left over once nobody has a request: a line per kind."""
    deadline = time.monotonic() + SETTLE_S
    async with aiohttp.ClientSession(headers=ANYONE) as clients:
        while True:
            async with clients.get(f"{it.url}/v1/loads") as reply:
                loads = (await reply.json())["loads"]
            busy = sum(each["num_running_reqs"] + each["num_waiting_reqs"] for each in loads)
            if not busy:
                return []
            if time.monotonic() > deadline:
                return [f"{busy} requests run although nobody has one"]
            await asyncio.sleep(1.0)


if __name__ == "__main__":
    main()
