"""The style of all pictures: colours by role, type sizes, and how a picture is written.

    with styled_figure(10, 6) as figure:
        headline(figure, "The finding, in words", "How it was found")
        axis = figure.subplots()
        ...
        save(figure, Path("out/waterfall"))  # waterfall.svg and waterfall.png

matplotlib is imported when something is drawn: it is an optional dependency.
"""

import contextlib
import importlib.util
import io
import logging
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from seer_sgl.files import explained

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

# Colours by role. Blue, grey and vermilion stay apart for colour-blind readers and in print, and
# each has a contrast of 4.5 to 1 or more with white, so that type may have it.
OURS: Final = "#2166a5"  # seer-sgl
PLAIN: Final = "#6b7280"  # plain SGLang and other unmodified software
PAPER: Final = "#c2410c"  # what the paper reports
KV: Final = PAPER  # the KV cache in use; no picture has both
INK: Final = "#1f2937"  # type and arrows
MUTED: Final = "#4b5563"  # type of less weight
OURS_DARK: Final = "#0b2a4a"
OURS_LIGHT: Final = "#d9e8f6"  # grounds behind type, and marks of second rank
PLAIN_LIGHT: Final = "#eceef1"
PAPER_LIGHT: Final = "#f6c9a8"
TAIL: Final = "#f5ecd7"  # the ground of a rollout's tail

DASHES: Final = (0, (4, 3))
HATCH: Final = "////"  # queued requests; running ones are solid
DOTS: Final = "...."  # requests that wait for KV

# Points. A picture is shown at two thirds of its size or less, so nothing is smaller than SMALL.
SMALL: Final = 11
TEXT: Final = 13
TITLE: Final = 16
TITLE_CHARACTERS: Final = 7.4  # per inch: bold ones of a sentence take a little less
LINE_SPACING: Final = 1.3

PNG_PIXELS: Final = 1600  # the width of every PNG: sharp on a slide, and small enough for a README
PNG_COLOURS: Final = 128

_RC: Any = {  # matplotlib types each key by name, from 3.11 on
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.titlelocation": "left",
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


def can_draw() -> bool:
    """Returns whether matplotlib is installed; if not, logs how to install it."""
    found = importlib.util.find_spec("matplotlib") is not None
    if not found:
        logger.warning("no pictures without matplotlib: pip install 'seer-sgl[plots]'")
    return found


@contextlib.contextmanager
def styled_figure(width: float, height: float) -> Iterator["Figure"]:
    """Yields an empty figure that needs no display. Width and height in inches.

    The style holds inside the `with` block; matplotlib's settings are what they were after it.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # the user's own settings change no picture
        mpl.rcParams.update(_RC)
        yield Figure(figsize=(width, height))


def idle_to_full() -> "Colormap":
    """Returns the map of how busy an engine is: from light to the darkest blue."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("idle_to_full", [OURS_LIGHT, OURS, OURS_DARK])


def headline(figure: "Figure", finding: str, details: str = "", *, fit: bool = True) -> None:
    """Writes the finding at the top of a figure, in bold, and below it how it was found.

    A finding that is wider than the figure is broken into lines. `fit`: axes that `figure.subplots`
    adds later fill the space below both.
    """
    widest = int(figure.get_figwidth() * TITLE_CHARACTERS)
    finding = "\n".join(textwrap.fill(line, widest) for line in finding.splitlines())
    top = 0.14  # inches
    below = top + _inches(finding, TITLE) + 0.05
    end = below + _inches(details, SMALL + 1) + 0.12
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
            linespacing=LINE_SPACING,
        )
    if fit:
        figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - end / figure.get_figheight()))


def _inches(words: str, size: float) -> float:
    """Returns the height of lines of words."""
    lines = words.count("\n") + 1 if words else 0
    return lines * size * LINE_SPACING / 72


def save(figure: "Figure", path: Path) -> list[Path]:
    """Writes a figure as SVG and PNG and returns both paths. `path`: without a suffix.

    Call it inside the `with` block of `styled_figure`. The same figure gives the same bytes: no
    date is written. Raises RolloutError if a file cannot be written; then neither is left.
    """
    from PIL import Image

    svg, png = (path.parent / f"{path.name}.{suffix}" for suffix in ("svg", "png"))
    try:
        with explained(svg):
            figure.savefig(svg, metadata={"Date": None})
        drawn = io.BytesIO()
        dpi = PNG_PIXELS / figure.get_figwidth()
        figure.savefig(drawn, format="png", dpi=dpi, pil_kwargs={"compress_level": 0})
        with explained(png), Image.open(drawn) as picture:
            # Few colours are drawn, so a palette loses nothing to the eye and a third of the bytes.
            picture.convert("RGB").quantize(PNG_COLOURS).save(png, optimize=True)
    except BaseException:
        for unfinished in (svg, png):
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
        raise
    return [svg, png]
