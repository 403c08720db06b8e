"""The work of `seer-sgl serve`, from start to end."""

import asyncio
import contextlib
import gc
from pathlib import Path

from seer_sgl.config import parse
from seer_sgl.server.command import serve
from tests.fake_sglang import FakeSGLang, serving
from tests.link.test_link import until


async def test_the_end_unfreezes_what_the_start_froze(tmp_path: Path) -> None:
    """Extension modules print warnings at exit about their objects that are not collected."""
    threshold = gc.get_threshold()
    async with serving(FakeSGLang()) as url:
        engines = {"launch": "external", "urls": [url]}
        config = parse({"engines": engines, "server": {"port": 0}})
        work = asyncio.create_task(serve(config, tmp_path))
        await until(lambda: gc.get_freeze_count() > 0)
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
    gc.set_threshold(*threshold)
    assert gc.get_freeze_count() == 0
