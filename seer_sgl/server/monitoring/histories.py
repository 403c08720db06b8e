"""The last minutes of the fleet, in cells of one second: what the lanes of the live page show."""

from collections import deque
from typing import Any

from seer_sgl.engine_types import EngineLoad

CELL_S = 1.0
CELLS = 300
# An engine is polled twice per cell, and a busy one answers late. So a cell without an answer
# repeats the one before, unless more in a row have none: then the engine did not answer.
GAP_CELLS = 5


class Cells:
    """A series of rows: the newest row of each of the last CELLS cells that have one."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=CELLS)

    def put(self, cell: int, row: tuple[int, ...]) -> None:
        """Sets the row of a cell, which is not before the last one."""
        if self._rows and self._rows[-1][0] == cell:
            self._rows.pop()
        self._rows.append((cell, row))

    def add(self, cell: int, amount: int) -> None:
        """Adds to the single number of a cell."""
        last = self._rows[-1] if self._rows else None
        self.put(cell, (amount + (last[1][0] if last is not None and last[0] == cell else 0),))

    def rows(self, first: int, end: int, gap: int) -> list[tuple[int, ...] | None]:
        """Returns the rows of the cells from `first` to before `end`; None: no row.

        A row also counts for up to `gap` cells after it.
        """
        found: list[tuple[int, ...] | None] = []
        rows = iter(self._rows)
        following = next(rows, None)
        newest: tuple[int, tuple[int, ...]] | None = None
        for cell in range(first, end):
            while following is not None and following[0] <= cell:
                newest, following = following, next(rows, None)
            found.append(newest[1] if newest is not None and cell - newest[0] <= gap else None)
        return found


class FleetHistory:
    """The history of all engines. Times: seconds on the driver's clock."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._engines: dict[str, Cells] = {}
        self._tokens = Cells()
        self._unfinished = Cells()

    def cell(self, now: float) -> int:
        """Returns the number of the cell at a time."""
        return max(0, int((now - self._began) / CELL_S))

    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        row = (load.running, load.queued, load.kv_waiting, load.used_tokens)
        self._engines.setdefault(engine_id, Cells()).put(self.cell(now), row)

    def left(self, engine_id: str) -> None:
        self._engines.pop(engine_id, None)

    def generated(self, now: float, tokens: int) -> None:
        """Adds the tokens of a chunk that came back."""
        self._tokens.add(self.cell(now), tokens)

    def unfinished(self, now: float, requests: int) -> None:
        """Sets the number of unfinished requests."""
        self._unfinished.put(self.cell(now), (requests,))

    def since(self, first: int, now: float, engines: list[str]) -> dict[str, Any]:
        """Returns the cells from number `first` on, at most CELLS of them.

        The last one is not complete yet. The series of an engine: running requests, queued ones,
        those that wait for KV, and KV tokens in use; null where it did not answer.
        """
        end = self.cell(now) + 1
        first = min(max(first, end - CELLS, 0), end)
        lanes = {}
        for engine_id in engines:
            rows = self._engines.get(engine_id, Cells()).rows(first, end, GAP_CELLS)
            lanes[engine_id] = {
                name: [None if row is None else row[place] for row in rows]
                for place, name in enumerate(("running", "queued", "kv_waiting", "kv"))
            }
        return {
            "cell_s": CELL_S,
            "cells": CELLS,
            "first": first,
            "end": end,
            "engines": lanes,
            "tokens": _numbers(self._tokens.rows(first, end, 0)),
            "unfinished": _numbers(self._unfinished.rows(first, end, CELLS)),
        }


def _numbers(rows: list[tuple[int, ...] | None]) -> list[int]:
    return [0 if row is None else row[0] for row in rows]
