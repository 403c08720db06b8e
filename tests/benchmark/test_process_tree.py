"""The child processes of a benchmark."""

import subprocess
import sys

import pytest

from seer_sgl.benchmark.process_tree import process_tree
from seer_sgl.engine.launch.process import SERVER_MODULE


@pytest.mark.process
def test_servers_and_their_children_are_told_from_others() -> None:
    waits = "import sys; print(flush=True); sys.stdin.read()"
    spawns = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits!r}])"
    commands = [[sys.executable, "-c", spawns, SERVER_MODULE], [sys.executable, "-c", waits]]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(line, stdin=pipe, stdout=pipe) for line in commands]
    try:
        for process in processes:  # up, with its child
            assert process.stdout is not None
            process.stdout.readline()
        now = process_tree()
        server, other = (process.pid for process in processes)
        (sglang,) = now.servers
        assert SERVER_MODULE in sglang.command
        assert sglang.processes[0].pid == server
        assert len(sglang.processes) == 2
        assert other in {process.pid for process in now.others}
    finally:
        for process in processes:
            process.communicate(timeout=30)  # which closes what they read
