"""Regular expressions that backtrack without end. Pure.

SGLang matches `stop_regex` with Python's `re` in its scheduler, at every token: a pattern that
takes exponential time stops all requests of the engine.
"""

import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parser  # type: ignore[import-not-found]
from typing import Any

REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
FEW = 16  # repetitions that are as good as none


def may_take_forever(pattern: str) -> bool:
    """Returns whether a repetition has another one, or alternatives that may overlap, within it.

    False for a text that is no pattern: SGLang refuses it.
    """
    try:
        return _repeats_choices(sre_parser.parse(pattern), within=False)
    except (re.error, RecursionError, OverflowError):
        return False


def _repeats_choices(items: Any, *, within: bool) -> bool:
    """`within`: whether the items are repeated."""
    for kind, value in items:
        if kind in REPEATS:
            _, most, repeated = value
            many = most > FEW
            if (within and many) or _repeats_choices(repeated, within=within or many):
                return True
        elif kind is sre.BRANCH:
            if (within and _overlap(value[1])) or any(
                _repeats_choices(each, within=within) for each in value[1]
            ):
                return True
        elif any(_repeats_choices(each, within=within) for each in _parts(value)):
            return True
    return False


def _overlap(alternatives: Any) -> bool:
    """Returns whether two alternatives may begin alike: not each has its own first letter."""
    first = [each[0] if len(each) else None for each in alternatives]
    letters = {each[1] for each in first if each is not None and each[0] is sre.LITERAL}
    return len(letters) < len(first)


def _parts(value: Any) -> list[Any]:
    """Returns the patterns inside a group or an assertion."""
    values = value if isinstance(value, tuple) else (value,)
    return [each for each in values if isinstance(each, sre_parser.SubPattern)]
