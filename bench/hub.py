"""Measures the draft hub alone: its CPU time and its lag with many engines that decode.

`python -m bench.hub --engines 16 64 --hubs 1 4` starts the hub's processes and connects so many
engines, which are sockets of this process. Each engine decodes `--rows` responses of
`--tokens-per-s` and sends their new tokens every 50 ms, as engines do; the responses of a group are
on 8 engines. The engines read what they are sent and throw it away, but for one pair, which
measures how long tokens take from one engine to another. The figures: CPU of the busiest hub
process and of all, as a share of a core; frames that the engines could send, as a share of those
due; and the median and the longest of those times. One process makes the load.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import uvloop

from seer_sgl.config import DraftConfig
from seer_sgl.draft.messages import Delta, Deltas, Open, batched, hub_of
from seer_sgl.draft.replica import FLUSH_S
from seer_sgl.link import messages
from seer_sgl.link.hub import ENGINES_PER_HUB, start_hubs

FAN_OUT = 8  # engines that serve a group
TOKEN = "secret"


class Engine:
    """The sockets of one engine to all hubs, and the state of its responses."""

    def __init__(self, number: int, urls: list[str], options: argparse.Namespace) -> None:
        self.number = number
        self.urls = urls
        self.sent = self.received = 0
        self._tokens_per_frame = options.tokens_per_s * FLUSH_S
        cluster = number - number % FAN_OUT
        self._rows = [
            (f"group-{cluster}-{row % (options.rows // 2)}", number % FAN_OUT * options.rows + row)
            for row in range(options.rows)
        ]
        self._frames = self._position = 0

    def deltas(self) -> list[list[Delta]]:
        """Returns the next tokens of all responses, by hub."""
        parts: list[list[Delta]] = [[] for _ in self.urls]
        self._frames += 1
        end = round(self._frames * self._tokens_per_frame)
        tokens = b"\1\0\0\0" * (end - self._position)
        for group, sequence in self._rows if tokens else ():
            parts[hub_of(group, len(self.urls))].append(
                Delta(group, sequence, self._position, tokens)
            )
        self._position = end
        return parts

    async def run(self, session: aiohttp.ClientSession, end: float) -> None:
        """Connects, opens its groups, and sends a frame to each hub every FLUSH_S until `end`."""
        async with contextlib.AsyncExitStack() as stack:
            sockets = []
            for hub, url in enumerate(self.urls):
                socket = await stack.enter_async_context(session.ws_connect(url, max_msg_size=0))
                hello = messages.Hello(messages.PROTOCOL, f"e{self.number}", 0, 1)
                await socket.send_bytes(messages.encode(hello))
                groups: dict[str, dict[int, int]] = {
                    group: {} for group, _ in self._rows if hub_of(group, len(self.urls)) == hub
                }
                await socket.send_bytes(messages.encode(Open(groups)))
                reader = asyncio.create_task(self._read(socket))
                stack.callback(reader.cancel)
                sockets.append(socket)
            turn = time.monotonic() + self.number % 50 * FLUSH_S / 50
            while turn < end:
                await asyncio.sleep(max(0.0, turn - time.monotonic()))
                if time.monotonic() > end:
                    break
                for socket, deltas in zip(sockets, self.deltas(), strict=True):
                    for batch in batched(deltas):
                        await socket.send_bytes(messages.encode(batch))
                self.sent += 1
                turn += FLUSH_S

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            self.received += len(message.data)


async def probe(session: aiohttp.ClientSession, url: str, end: float) -> list[float]:
    """Sends the time as a token from one engine to another; returns the seconds that it took."""
    times: list[float] = []
    start = time.monotonic()
    async with session.ws_connect(url) as sender, session.ws_connect(url) as receiver:
        for name, socket in (("sender", sender), ("receiver", receiver)):
            await socket.send_bytes(messages.encode(messages.Hello(messages.PROTOCOL, name, 0, 1)))
            await socket.send_bytes(messages.encode(Open({"probe": {}})))

        async def read() -> None:
            async for message in receiver:
                frame = messages.decode(message.data, messages.to_engine)
                if isinstance(frame, Deltas):
                    sent = np.frombuffer(frame.deltas[-1].tokens, np.int32)[-1]
                    times.append(time.monotonic() - start - float(sent) / 1e4)

        reader = asyncio.create_task(read())
        position = 0
        while time.monotonic() < end:
            now = np.array([(time.monotonic() - start) * 1e4], np.int32).tobytes()
            await sender.send_bytes(messages.encode(Deltas([Delta("probe", 0, position, now)])))
            position += 1
            await asyncio.sleep(FLUSH_S)
        reader.cancel()
    return times


async def measure(engines: int, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of so many engines on so many hubs."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    timeout = aiohttp.ClientTimeout(total=None)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            start_hubs(
                DraftConfig(), Path(folder), TOKEN, engines=count * ENGINES_PER_HUB
            ) as addresses,
            aiohttp.ClientSession(
                headers=headers, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
            ) as session,
        ):
            urls = addresses.split(",")
            processes = psutil.Process().children()
            fleet = [Engine(number, urls, options) for number in range(engines)]
            before = [sum(process.cpu_times()[:2]) for process in processes]
            start = time.monotonic()
            end = start + options.seconds
            running = [asyncio.create_task(engine.run(session, end)) for engine in fleet]
            times = await probe(session, urls[0], end)
            wall_s = time.monotonic() - start
            after = [sum(process.cpu_times()[:2]) for process in processes]
            await asyncio.gather(*running)
    cpu = [(new - old) / wall_s for old, new in zip(before, after, strict=True)]
    due = engines * round(options.seconds / FLUSH_S)
    return {
        "engines": engines,
        "hubs": count,
        "busiest": round(max(cpu), 2),
        "cores": round(sum(cpu), 2),
        "sent": round(sum(engine.sent for engine in fleet) / due, 2),
        "mb_s_out": round(sum(engine.received for engine in fleet) / wall_s / 1e6, 1),
        "median_ms": round(statistics.median(times) * 1e3),
        "longest_ms": round(max(times) * 1e3),
    }


async def measure_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures every number of engines with every number of hubs, and prints each result."""
    figures = []
    for engines in options.engines:
        for count in options.hubs:
            figures.append(await measure(engines, count, options))
            if not options.json:
                print("  ".join(f"{key} {value}" for key, value in figures[-1].items()))
    return figures


def main() -> None:
    """Prints the figures; one JSON list last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--hubs", type=int, nargs="+", default=[1])
    parser.add_argument("--rows", type=int, default=128, help="responses per engine")
    parser.add_argument("--tokens-per-s", type=float, default=25, help="per response")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", action="store_true", help="print only the JSON list")
    options = parser.parse_args()
    print(json.dumps(uvloop.run(measure_all(options))))


if __name__ == "__main__":
    main()
