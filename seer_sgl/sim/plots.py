"""x"""

from pathlib import Path
from .opening import Question
from .variants import Case


def draw_all(question: Question, case: Case, out: Path) -> None:
    """x"""
