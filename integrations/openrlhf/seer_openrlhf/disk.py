"""A weight update through a folder that the trainer and all engines see; on rank 0."""

import shutil
from pathlib import Path

from .calls import Calls, UpdateFailed, WeightError, ask, done, failures, logger, named

UPDATE = "/update_weights_from_disk"


class DiskSender:
    """Lets the engines load the folders `step-N` below `root`, and removes the older ones."""

    def __init__(self, calls: Calls, root: Path, timeout_s: float) -> None:
        self._calls = calls
        self._root = root
        self._timeout_s = timeout_s
        self._made: Path | None = None

    def folder(self, step: int) -> Path:
        """Returns where the model of a step belongs."""
        return self._root / f"step-{step}"

    def load(self, step: int) -> list[str]:
        """Returns the engines that have loaded a step's folder.

        Raises UpdateFailed if none has, and WeightError if none answers.
        """
        folder = self.folder(step)
        fields = {"model_path": str(folder), "weight_version": str(step)}
        answer = ask(self._calls, UPDATE, fields, self._timeout_s)
        present, failed = done(answer), failures(answer)
        if not present:
            why = named(failed) or str(answer.get("message"))
            statuses = {each["status"] for each in answer.get("engines", {}).values()}
            raise (WeightError if statuses == {None} else UpdateFailed)(why)
        if failed:
            logger.warning("step %s: not updated: %s", step, named(failed))
        if self._made not in (None, folder):
            shutil.rmtree(str(self._made), ignore_errors=True)
        self._made = folder
        return present
