"""`seer-openrlhf` on a CPU, with a fault in the weight path: python faulty_command.py FAULT ...

FAULT names what happens to the updates; the first one is that of the start, and the weights change
in the third one, because the first optimizer step has a learning rate of 0:
  none
  skipped   later updates send the tensors of the first one
  swapped   from the second update on, two tensors of one shape are exchanged
  one:DIR   from the third update on, engine e1 gets the weights in DIR again, at its own address
  kill      e0 is killed after the first update, e1 in the middle of the third one
  hang      e1 is stopped in the middle of the third update, with SIGSTOP
  server    the server is killed in the middle of the third update
"""

from __future__ import annotations  # Ray's workers get `faulty` by value, without their names

import json
import os
import sys
import urllib.request
from importlib import import_module
from typing import Any

import cpu_command
import psutil
from seer_openrlhf.flags import current_flags
from stand_ins import cpu

FAULT = "SEER_TEST_FAULT"
SWAPPED = ("model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight")
STAND_INS = cpu.install


def install() -> None:
    """The hook of Ray's workers: the stand-ins, and a sender with the fault."""
    STAND_INS()
    module: Any = import_module("seer_openrlhf.broadcasts")
    module.BroadcastSender = faulty(module.BroadcastSender, os.environ[FAULT])


def faulty(sender: Any, fault: str) -> Any:
    """Returns a subclass of the sender that makes the fault."""
    kind, _, folder = fault.partition(":")

    class Faulty(sender):  # type: ignore[misc]
        updates, buckets = 0, 0

        def begin(self, step: int) -> None:
            self.updates, self.buckets = self.updates + 1, 0
            super().begin(step)

        def send(self, bucket: Any) -> None:
            self.buckets += 1
            if (self.updates, self.buckets) == (3, 2):
                if kind == "server":
                    process_at(current_flags().url).kill()
                elif kind in ("kill", "hang"):
                    for process in processes(url_of(self._calls, "e1")):
                        process.kill() if kind == "kill" else process.suspend()
            if kind == "skipped":
                self.first = {name: each.clone() for name, each in bucket} | vars(self).get(
                    "first", {}
                )
                bucket = [(name, self.first[name]) for name, _ in bucket]
            if kind == "swapped" and self.updates >= 2:
                names = dict(zip(SWAPPED, reversed(SWAPPED), strict=True))
                bucket = [(names.get(name, name), each) for name, each in bucket]
            super().send(bucket)

        def end(self, failure: Any) -> Any:
            engines = super().end(failure)
            if kind == "kill" and self.updates == 1:
                for process in processes(url_of(self._calls, "e0")):
                    process.kill()
            if kind == "one" and self.updates >= 3:
                push(url_of(self._calls, "e1"), folder, self._version)
            return engines

    return Faulty


def url_of(calls: Any, engine: str) -> str:
    """Returns an engine's address."""
    (url,) = (each["url"] for each in calls.workers() if each["id"] == engine)
    return str(url)


def processes(url: str) -> list[psutil.Process]:
    """Returns the processes of the engine that listens there."""
    engine = process_at(url)
    return [*engine.children(recursive=True), engine]


def process_at(url: str) -> psutil.Process:
    """Returns the process that listens there."""
    port = int(url.rpartition(":")[2])
    sockets = [each for each in psutil.net_connections("tcp") if each.pid and each.laddr]
    (pid,) = {
        each.pid
        for each in sockets
        if each.status == psutil.CONN_LISTEN and tuple(each.laddr)[1:] == (port,)
    }
    return psutil.Process(pid)


def push(url: str, folder: str, version: str) -> None:
    """Makes an engine load other weights under the same version."""
    body = json.dumps({"model_path": folder, "weight_version": version}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url + "/update_weights_from_disk", body, headers)
    with urllib.request.urlopen(request) as reply:
        assert json.load(reply)["success"]


def main() -> None:
    """Runs the training with the fault."""
    os.environ[FAULT] = sys.argv.pop(1)  # Ray starts here, and its workers get the variables
    cpu_command.use_cpu()
    cpu.install = install
    command: Any = import_module("seer_openrlhf.command")
    command.main()


if __name__ == "__main__":
    main()
