"""A Ray cluster of several nodes on this machine, all of them on loopback.

It has a process of its own (`python -m tests.engine.ray_cluster`), because Ray takes over signals
and leaves files open. That process reads commands from standard input, one per line.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seer_sgl.engine.launch.ray_cluster import KEEP_DEVICES, ON_LOOPBACK

STORE_BYTES = 80 << 20
NODE = {
    "num_cpus": 1,
    "object_store_memory": STORE_BYTES,
    "include_dashboard": False,
    "node_ip_address": "127.0.0.1",
}
ENVIRONMENT = {**KEEP_DEVICES, **ON_LOOPBACK, "RAY_USAGE_STATS_ENABLED": "0"}
for name, value in ENVIRONMENT.items():  # before Ray is imported
    os.environ.setdefault(name, value)
ANSWER = "answer: "  # the beginning of a line on standard output


class Nodes:
    """The nodes of a cluster, each with room for one engine. Node 0 is the head."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.address = self._answer()
        self._count = 1

    def add(self) -> int:
        """Adds a node, and returns its number once it is alive."""
        self._command("add")
        self._count += 1
        return self._count - 1

    def kill(self, number: int) -> None:
        """Kills all processes of a node at once, as if its machine was gone."""
        self._command(f"kill {number}")

    def _command(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER).strip()
        raise AssertionError("the cluster has ended")


@contextlib.contextmanager
def cluster_of(count: int) -> Iterator[Nodes]:
    """Starts `count` nodes, and ends all nodes at the end."""
    command = [sys.executable, "-m", "tests.engine.ray_cluster"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            nodes = Nodes(process)
            for _ in range(count - 1):
                nodes.add()
            yield nodes
        finally:
            assert process.stdin is not None
            process.stdin.close()  # the cluster ends
            process.wait(60)


def main() -> None:
    """Runs the cluster until standard input ends."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        # Whatever `temp_dir` is, Ray writes the address of the cluster into this folder, and does
        # not create it.
        os.environ["RAY_TMPDIR"] = folder
        temporary = Path(folder) / "ray"
        temporary.mkdir()
        _serve(Cluster, {**NODE, "temp_dir": str(temporary)})


def _serve(kind: Any, node: dict[str, Any]) -> None:
    cluster = kind(initialize_head=True, head_node_args=node)
    nodes: list[Any] = [cluster.head_node]
    try:
        print(f"{ANSWER}{cluster.address}", flush=True)
        for line in sys.stdin:
            command, _, number = line.strip().partition(" ")
            if command == "add":
                nodes.append(cluster.add_node(**node))
            else:
                cluster.remove_node(nodes[int(number)], allow_graceful=False)
            print(f"{ANSWER}{command}", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
