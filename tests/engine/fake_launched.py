"""Replaces the server module in tests of the launcher. `--mode` selects its behaviour.

serve: becomes ready with our plugin; stock: becomes ready without it; other: the server of another
start answers at its port; die: prints a reason and ends; hang: never listens. It first starts a
child process, which must end with its parent.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from typing import Any


async def serve(port: int, app: Any) -> None:
    from aiohttp import web

    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--mode")
    flags, _ = parser.parse_known_args()
    print("loading weights", flush=True)  # before the slow imports
    from seer_sgl.link import contract
    from tests.fake_sglang import FakeSGLang

    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if flags.mode == "die":
        print("ValueError: the weights are gone", flush=True)
        sys.exit(3)
    if flags.mode == "hang":
        time.sleep(600)
    instance = "other" if flags.mode == "other" else os.environ[contract.INSTANCE]
    report = {"version": "1", "missing": [], "instance": instance}
    plugin = None if flags.mode == "stock" else report
    asyncio.run(serve(flags.port, FakeSGLang(plugin=plugin).app()))


main()
