"""Captures seer-sgl's log as lines."""

import contextlib
import logging
from collections.abc import Iterator

from typing_extensions import override


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Yields a list that receives the messages logged in the block, at level info and above."""
    logger, lines = logging.getLogger("seer_sgl"), list[str]()
    handler, before = _Lines(lines), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
