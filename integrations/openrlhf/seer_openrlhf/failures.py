"""One line about an error, which Ray may have wrapped on its way between processes. Pure."""

import re
from collections.abc import Iterator

from ray.exceptions import RayActorError

MOST_CHARACTERS = 500
NAME = re.compile(r"class_name: (\S+)")
PLACE = re.compile(r"pid: (\d+).*?ip: (\S+)", re.DOTALL)


def reason(error: BaseException) -> str:
    """Returns what is behind an error of a training, in one line.

    Ray raises a RayTaskError for an error of a task, with the error as its `cause`: one for each
    process that the error has come through.
    """
    *_, first = _causes(error)
    return _dead(first) if isinstance(first, RayActorError) else described(first)


def described(error: BaseException) -> str:
    """Returns the name of an error's class and its text, in one line."""
    text = one_line(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """Returns a text in one line of at most `most` characters."""
    joined = " ".join(text.split())
    return joined if len(joined) <= most else joined[: most - 3] + "..."


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: object = error
    while isinstance(found, BaseException):
        yield found
        found = getattr(found, "cause", None)


def _dead(error: RayActorError) -> str:
    """Returns which actor has ended, and why; Ray's text has a line for each, the reason last."""
    text = str(error)
    why = one_line(text.strip().rpartition("\n")[2])
    if error.actor_init_failed:
        return f"an actor of Ray cannot start: {why}"
    name, place = NAME.search(text), PLACE.search(text)
    who = f" {name[1]}" if name else ""
    where = f" (process {place[1]} on {place[2]})" if place else ""
    return f"Ray's actor{who}{where} has ended: {why}"
