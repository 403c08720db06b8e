"""Takes the pictures of the server's live page: real engines, a rollout and single requests.

`python -m bench.page_screenshot [--config configs/cpu-seer.yaml] [--out docs/assets]`
writes `server-page.png` and `server-page-dark.png`. It needs Chromium and SGLang.
"""

import argparse
import asyncio
import contextlib
import io
import itertools
from pathlib import Path
from typing import Any

import aiohttp
from PIL import Image

from bench.browser import Page, opened
from seer_sgl.config import load, with_values
from seer_sgl.rollout.rollout import Rollout
from seer_sgl.server.command import serving
from seer_sgl.server.service import Service

ROOT = Path(__file__).parents[1]
SETTINGS = {"server.port": 0, "rollout.max_prompts": 12}
SINGLE_PROMPTS = 6  # in turn, from single callers beside the rollout
SAMPLES = 4  # of each, as requests of their own
COLOURS = 128
WIDTH, LEAST_HEIGHT = 1280, 900
SHOTS = {"server-page": False, "server-page-dark": True}  # whether it is dark


async def shoot(config: Path, out: Path, seconds: float, log_dir: Path) -> list[Path]:
    """Serves, loads the server for some seconds, and writes the pictures. Returns their paths."""
    settings = with_values(load(config), SETTINGS)
    async with contextlib.AsyncExitStack() as stack:
        rollout = await stack.enter_async_context(
            Rollout(settings, log_dir=log_dir, gives_up=False)
        )
        service = Service(rollout)
        url = await stack.enter_async_context(serving(service))
        tasks = [
            asyncio.create_task(service.generation.run()),
            asyncio.create_task(_roll_out(rollout)),
            asyncio.create_task(_ask(url, rollout)),
        ]
        try:
            page = await stack.enter_async_context(opened())
            await asyncio.sleep(seconds)
            return [
                await _shot(page, url, out / f"{name}.png", dark) for name, dark in SHOTS.items()
            ]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _roll_out(rollout: Rollout) -> None:
    prompts = rollout.read_prompts(rollout.config.rollout.prompts or "")
    while True:
        async for _ in rollout.run(prompts):
            pass


async def _ask(url: str, rollout: Rollout) -> None:
    """Sends single requests, some of which are siblings, one group after the other."""
    prompts = rollout.read_prompts(rollout.config.rollout.prompts or "")[-SINGLE_PROMPTS:]
    async with aiohttp.ClientSession() as session:
        for number, prompt in zip(itertools.count(), itertools.cycle(prompts)):
            body: dict[str, Any] = {
                "input_ids": list(prompt.prompt_ids),
                "group_id": f"chat-{number}",
                "sampling_params": {"max_new_tokens": 4000, "temperature": 1.0},
            }
            await asyncio.gather(*(_one(session, url, body) for _ in range(SAMPLES)))


async def _one(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    async with session.post(f"{url}/generate", json=body) as reply:
        reply.raise_for_status()
        await reply.read()


async def _shot(page: Page, url: str, path: Path, dark: bool) -> Path:
    await page.show(url, WIDTH, LEAST_HEIGHT, dark=dark)
    await page.until("!document.getElementById('main').hidden")
    await page.resize(WIDTH, await page.value("document.documentElement.scrollHeight"))
    await asyncio.sleep(1.5)  # drawn at least once more
    with Image.open(io.BytesIO(await page.picture())) as picture:
        picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    return path


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Take the pictures of the server's live page.")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "cpu-seer.yaml")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "assets")
    parser.add_argument("--seconds", type=float, default=110.0, help="of load before the pictures")
    parser.add_argument("--logs", type=Path, default=Path("logs"), help="of the engines")
    given = parser.parse_args()
    for path in asyncio.run(shoot(given.config, given.out, given.seconds, given.logs)):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
