"""What all pictures but the timeline share. matplotlib is imported when something is drawn."""

from pathlib import Path
from typing import TYPE_CHECKING

from seer_sgl.files import explained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, inches, that needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def open_frame(axis: "Axes") -> None:
    """Without the frame's upper and right sides."""
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def save(figure: "Figure", path: Path) -> None:
    """Write the picture. Raises RolloutError where that cannot be."""
    with explained(path):
        figure.savefig(path, dpi=130)
