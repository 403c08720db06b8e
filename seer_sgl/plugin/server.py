"""One SGLang server with our plugin: `python -m seer_sgl.plugin.server --model-path M ...`.

`seer-sgl engine` and the local launcher both start this module. Everything at module level runs
again in the spawned scheduler and detokenizer processes, which is where the CPU stand-ins must be
in place before `sglang` is imported.
"""

import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

from seer_sgl.link import contract
from seer_sgl.link.contract import API_KEY
from seer_sgl.processes.child import end_with_parent

from . import cpu, dp_ranks
from .ability import refusal
from .sglang_types import SglServerArgs

cpu.prepare()

VERIFY_POLL_S = 1.0
SCHEDULERS = "scheduler_pids"  # in `/server_info`, of a server with data-parallel ranks


def main(arguments: list[str]) -> None:
    """Runs the server until a signal ends it. `arguments`: SGLang's own flags."""
    end_with_parent()
    os.environ.setdefault(contract.INSTANCE, uuid.uuid4().hex)
    api_key = os.environ.pop(API_KEY, None)
    if api_key is not None:
        arguments = ["--api-key", api_key, *arguments]  # the last of repeated flags counts

    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    from .plugin import current

    load_plugins()
    plugin = current()
    off = {} if plugin is None else plugin.off
    if contract.DRAFTS in off and any(contract.ALGORITHM in argument for argument in arguments):
        sys.exit(f"seer-sgl: this server cannot draft: {off[contract.DRAFTS]}")
    server_args = prepare_server_args(arguments)
    problem = refusal(off, server_args, os.environ)
    if problem is not None:
        sys.exit(f"seer-sgl: {problem}")
    threading.Thread(target=_watch, args=(server_args,), daemon=True).start()
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _watch(server_args: SglServerArgs) -> None:
    """Ends the server if its schedulers run without our hooks, which SGLang only logs, or if one
    of several data-parallel ranks has ended."""
    request = urllib.request.Request(f"{server_args.url()}/server_info")
    if server_args.api_key:
        request.add_header("Authorization", f"Bearer {server_args.api_key}")
    while True:
        time.sleep(VERIFY_POLL_S)
        try:
            with urllib.request.urlopen(request) as reply:
                info = json.load(reply)
                states = info["internal_states"]
        except (OSError, ValueError, KeyError):  # not up yet
            continue
        reports = [state.get(contract.REPORT) for state in states]
        problem = contract.problem([report and report["missing"] for report in reports])
        if problem is None:
            break
        print(f"seer-sgl: {problem}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        return
    pids = info.get(SCHEDULERS)
    if pids:
        from sglang.srt.utils import kill_process_tree

        ended = dp_ranks.until_one_ends(pids)
        print(f"seer-sgl: scheduler {ended} has ended", file=sys.stderr, flush=True)
        # At once: SGLang's own signal for it, SIGQUIT, waits a minute for core dumps of a GPU.
        kill_process_tree(os.getpid())


if __name__ == "__main__":
    main(sys.argv[1:])
