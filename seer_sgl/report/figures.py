"""Helpers for all figures except the timeline. matplotlib is imported only when one is drawn."""

import importlib.util
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from seer_sgl.files import explained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)


def can_draw() -> bool:
    """Returns whether matplotlib is installed; if not, logs how to install it."""
    found = importlib.util.find_spec("matplotlib") is not None
    if not found:
        logger.warning("no pictures without matplotlib: pip install 'seer-sgl[plots]'")
    return found


def new_figure(width: float, height: float) -> "Figure":
    """Returns an empty figure that needs no display. Width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def open_frame(axis: "Axes") -> None:
    """Hides the upper and right side of an axis's frame."""
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def save(figure: "Figure", path: Path) -> None:
    """Writes the figure to a file. Raises RolloutError if it cannot be written."""
    with explained(path):
        figure.savefig(path, dpi=130)
