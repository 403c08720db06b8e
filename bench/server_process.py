"""The rollout server of the server benchmark: `python -m bench.server_process CONFIG_JSON`.

It prints its URL, and for each line on standard input the state of its ledgers. It ends with its
standard input.
"""

import asyncio
import gc
import json
import sys
from typing import Any

import uvloop

from seer_sgl.engine.session import raise_file_limit
from seer_sgl.rollout.rollout import Rollout
from seer_sgl.server.command import rare_collections, serving
from seer_sgl.server.service import Service
from seer_sgl.types import Request


async def serve(config: dict[str, Any]) -> None:
    """Serves until standard input ends."""
    async with Rollout(config, gives_up=False) as rollout:
        service = Service(rollout)
        with rare_collections():
            async with serving(service) as url, asyncio.TaskGroup() as tasks:
                work = tasks.create_task(service.generation.run())
                print(url, flush=True)
                while await asyncio.to_thread(sys.stdin.readline):
                    print(json.dumps(state(service)), flush=True)
                work.cancel()


def state(service: Service) -> dict[str, Any]:
    """Returns what must be zero or empty in an idle server."""
    gc.collect()
    return {
        "in_progress": service.generation.in_progress,
        "open_groups": service.generation.open_groups,
        "breaches": service.driver.check(),
        "tasks": len(asyncio.all_tasks()),
        "requests": sum(isinstance(each, Request) for each in gc.get_objects()),
    }


if __name__ == "__main__":
    raise_file_limit()
    uvloop.run(serve(json.loads(sys.argv[1])))
