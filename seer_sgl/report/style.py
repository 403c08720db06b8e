"""The style that all pictures share: colours by role, sizes of type, and how a picture is saved.

    with styled_figure(10, 6) as figure:
        axis = figure.subplots()
        ...
        save(figure, Path("out/waterfall"))  # waterfall.svg and waterfall.png

matplotlib is imported when something is drawn: it is an optional dependency.
"""

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from seer_sgl.files import explained

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Colours by role. Blue, grey and vermilion stay apart for colour-blind readers and in print, and
# each has a contrast of 4.5 to 1 or more with white, so that type may have it.
OURS: Final = "#2166a5"  # seer-sgl
PLAIN: Final = "#6b7280"  # plain SGLang and other software that is used as it is
PAPER: Final = "#c2410c"  # what the paper reports
INK: Final = "#1f2937"  # type and arrows
MUTED: Final = "#4b5563"  # type of less weight
OURS_LIGHT: Final = "#d9e8f6"  # grounds behind type, and marks of second rank
PLAIN_LIGHT: Final = "#eceef1"
PAPER_LIGHT: Final = "#f6c9a8"

RUNNING: Final[Mapping[str, Any]] = {"facecolor": OURS, "edgecolor": "none"}

# Points. A picture is shown at two thirds of its size or less, so nothing is smaller than SMALL.
SMALL: Final = 11
TEXT: Final = 13
TITLE: Final = 16

PNG_PIXELS: Final = 1600  # the width of every PNG: sharp on a slide, and small enough for a README
PNG_COLOURS: Final = 128

_RC: Any = {  # matplotlib types each key by name, from 3.11 on
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same
    "font.size": TEXT,
    "axes.titlesize": TITLE,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": TEXT,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": SMALL + 1,
    "ytick.labelsize": SMALL + 1,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "legend.fontsize": SMALL + 1,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "hatch.linewidth": 1.2,
    "svg.hashsalt": "seer-sgl",  # ids inside an SVG are random without it
    "svg.fonttype": "path",  # the reader's machine need not have the font
}

Point = tuple[float, float]  # across, up


@contextlib.contextmanager
def styled_figure(width: float, height: float) -> Iterator["Figure"]:
    """An empty figure of so many inches that needs no display.

    The style holds inside the `with` block; matplotlib's settings are what they were after it.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # the user's own settings change no picture
        mpl.rcParams.update(_RC)
        yield Figure(figsize=(width, height))


def idle_to_full() -> "Colormap":
    """The map of how busy an engine is: 0, idle, is white; 1, full, is the darkest blue."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("idle_to_full", ["white", OURS_LIGHT, OURS, "#0b2a4a"])


def headline(figure: "Figure", finding: str, details: str = "") -> None:
    """Write the finding at the top of a figure, in bold, and below it how it was found."""
    top, lines = 0.14, finding.count("\n") + 1  # top: inches
    below = top + lines * TITLE * 1.4 / 72
    for y, words, size, weight, colour in (
        (top, finding, TITLE, "bold", INK),
        (below, details, SMALL + 1, "normal", MUTED),
    ):
        figure.text(
            0.12 / figure.get_figwidth(),
            1 - y / figure.get_figheight(),
            words,
            va="top",
            fontsize=size,
            fontweight=weight,
            color=colour,
            linespacing=1.3,
        )


def save(figure: "Figure", path: Path) -> list[Path]:
    """Write a figure as SVG and PNG and return both paths. `path`: without a suffix.

    Call it inside the `with` block of `styled_figure`. The same figure gives the same bytes: no
    date is written. Raises RolloutError if a file cannot be written.
    """
    from PIL import Image

    svg, png = (path.parent / f"{path.name}.{suffix}" for suffix in ("svg", "png"))
    with explained(svg):
        figure.savefig(svg, metadata={"Date": None})
    drawn = io.BytesIO()
    dpi = PNG_PIXELS / figure.get_figwidth()
    figure.savefig(drawn, format="png", dpi=dpi, pil_kwargs={"compress_level": 0})
    with explained(png), Image.open(drawn) as picture:
        # Few colours are drawn, so a palette loses nothing to the eye and a third of the bytes do.
        picture.convert("RGB").quantize(PNG_COLOURS).save(png, optimize=True)
    return [svg, png]


class Canvas:
    """A board for diagrams over a whole figure: boxes, type and arrows.

    It is 100 units wide; a unit is as high as it is wide. (0, 0) is the lower left corner.
    """

    def __init__(self, figure: "Figure") -> None:
        self.height = 100 * figure.get_figheight() / figure.get_figwidth()
        self._points = 72 * figure.get_figwidth() / 100  # of type, in a unit
        self._axis = figure.add_axes((0, 0, 1, 1))
        self._axis.set_axis_off()
        self._axis.set_xlim(0, 100)
        self._axis.set_ylim(0, self.height)

    def box(
        self, corner: Point, size: Point, *, fill: str = "white", edge: str = "none", z: float = 1
    ) -> None:
        """A box with round corners. `corner`: the lower left one; `size`: width and height."""
        from matplotlib.patches import FancyBboxPatch

        style = f"round,pad=0,rounding_size={min(1.2, size[1] / 5)}"
        self._axis.add_patch(
            FancyBboxPatch(corner, *size, boxstyle=style, fc=fill, ec=edge, lw=1.8, zorder=z)
        )

    def text(
        self,
        at: Point,
        words: str,
        size: float = TEXT,
        colour: str = INK,
        *,
        weight: Literal["normal", "bold"] = "normal",
        ha: Literal["left", "center", "right"] = "center",
    ) -> None:
        """Lines of words, as a block centred at the height of a point; `ha`: and its width."""
        em, lines = size / self._points, words.split("\n")
        for number, line in enumerate(lines):
            # By baselines: matplotlib centres by what letters a line happens to have.
            up = ((len(lines) - 1) / 2 - number) * 1.35 * em - 0.36 * em
            self._axis.text(
                at[0],
                at[1] + up,
                line,
                fontsize=size,
                color=colour,
                weight=weight,
                ha=ha,
                va="baseline",
                zorder=4,
            )

    def arrow(
        self, start: Point, end: Point, *, both: bool = False, colour: str = INK, path: str = ""
    ) -> None:
        """An arrow. `both`: with a head at either end; `path`: matplotlib's connection style."""
        from matplotlib.patches import FancyArrowPatch

        head = "head_length=7,head_width=4"
        self._axis.add_patch(
            FancyArrowPatch(
                start,
                end,
                arrowstyle=f"<|-|>,{head}" if both else f"-|>,{head}",
                connectionstyle=path or "arc3",
                lw=2.2,
                color=colour,
                shrinkA=0,
                shrinkB=0,
                joinstyle="miter",
                zorder=3,
            )
        )
