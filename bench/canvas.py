"""A board for diagrams: boxes, type and arrows, in the style of all pictures."""

from typing import TYPE_CHECKING, Literal

from seer_sgl.report.style import INK, TEXT, Point

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
