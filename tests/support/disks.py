"""Disks of a journal that are not as fast as they should be."""

import threading

import pytest

from seer_sgl.driver.journal import writer


class BusyDisk:
    """A disk of a journal whose syncs wait until they may proceed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncing, self.proceed = threading.Event(), threading.Event()
        monkeypatch.setattr(writer.BlockWriter, "sync", staticmethod(self._sync))

    def _sync(self, _: int) -> None:
        self.syncing.set()
        self.proceed.wait()
