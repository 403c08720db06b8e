"""Replaces the server module in tests of the launcher. `--mode` selects its behaviour.

serve: becomes ready with our plugin; stock: becomes ready without it; other: the server of another
start answers at its port; die: prints a reason and exits; hang: never listens; once: serves, and
ends at every later start. It first starts a child process, which must end with its parent; with
`--own-end` that ends by itself, like SGLang's, if the server alone is killed.

The weights of a folder are what its file `weights` says. `--starts FOLDER`: each start leaves a
file there. `--prompt-len`: of all prompts, which another process has not seen begin.
`--last-words`: so many are logged at SIGTERM.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from seer_sgl.processes.child import end_with_parent

STAYING = "import time; time.sleep(600)"
ASKED = "it was asked"  # of the log of a server of another start
LAST_LINE = "the server ends"  # of the log of a server that is told to
ENDING = "import os, time\nmine = os.getppid()\nwhile os.getppid() == mine: time.sleep(0.2)"


async def serve(port: int, app: Any, last_words: int) -> None:
    from aiohttp import web

    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
    print("word\n" * last_words + LAST_LINE, flush=True)


def weights_in(folder: str) -> str:
    path = Path(folder) / "weights"
    return path.read_text() if path.exists() else "the first"


def app_of(flags: argparse.Namespace) -> Any:
    from seer_sgl.link import contract
    from tests.fake_sglang import FakeSGLang

    class Launched(FakeSGLang):
        async def update(self, fields: dict[str, Any]) -> Any:
            reply = await super().update(fields)
            if self.plugin is not None:
                self.plugin["weights"] = weights_in(fields["model_path"])
            self.model_path = fields["model_path"]
            return reply

        async def server_info(self, request: Any) -> Any:
            if self.plugin is not None and flags.breaks.exists():
                pool = {
                    "namespace": "",
                    "kv_bytes_per_token": 0,
                    "broken": flags.breaks.read_text(),
                }
                self.plugin["pool"] = pool
            if flags.mode == "other":
                print(ASKED, flush=True)
            return await super().server_info(request)

    class Fixed(dict[int, int]):
        def setdefault(self, _: int, length: int = 0) -> int:
            return flags.prompt_len or length

    instance = "other" if flags.mode == "other" else os.environ[contract.INSTANCE]
    weights = weights_in(flags.model_path)
    report = {"version": "1", "missing": [], "instance": instance, "weights": weights}
    return Launched(
        plugin=None if flags.mode == "stock" else report,
        longest=flags.longest,
        delay_s=flags.delay_s,
        weight_version="default",
        model_path=flags.model_path,
        prompt_lens=Fixed() if flags.prompt_len else {},
    ).app()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--mode")
    parser.add_argument("--model-path")
    parser.add_argument("--starts", type=Path)
    parser.add_argument("--longest", type=int, default=50)
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--prompt-len", type=int)
    parser.add_argument("--own-end", action="store_true")
    parser.add_argument("--last-words", type=int, default=0)
    flags, _ = parser.parse_known_args()
    print("loading weights", flush=True)  # before the slow imports
    end_with_parent()
    subprocess.Popen([sys.executable, "-c", ENDING if flags.own_end else STAYING])
    again = False
    if flags.starts is not None:
        place = flags.starts / str(flags.port)
        again = place.exists()
        with place.open("a") as starts:
            starts.write(f"{os.getpid()}\n")
    # The KV pool of the first server at a port breaks once the test has written this file.
    flags.breaks = Path("/nowhere") if again or flags.starts is None else place.with_suffix(".kv")
    if flags.mode == "die" or (flags.mode == "once" and again):
        print("ValueError: the weights are gone", flush=True)
        sys.exit(3)
    if flags.mode == "hang":
        time.sleep(600)
    asyncio.run(serve(flags.port, app_of(flags), flags.last_words))


if __name__ == "__main__":
    main()
