"""Lines of prose that fit a window. Pure."""

import re
import textwrap

COLUMNS = 156
# Code and the text of a link stay on one line.
UNBROKEN = re.compile(r"`[^`]*`|\[[^\]]*\]\([^)]*\)")


def wrapped(text: str, hanging: str = "") -> str:
    """Returns a paragraph in lines of at most COLUMNS. `hanging`: before all but the first."""
    kept = UNBROKEN.sub(lambda found: found[0].replace(" ", "\0"), " ".join(text.split()))
    lines = textwrap.fill(
        kept,
        COLUMNS,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace("\0", " ")
