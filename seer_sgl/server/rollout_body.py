"""The bodies of the rollout API."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from aiohttp import web

from seer_sgl.bounds import Natural, Positive
from seer_sgl.config import plain
from seer_sgl.config.tree import Samples
from seer_sgl.rollout.prompts import PromptRecord

from .bodies import LINES
from .decode import unreadable_as_refusal
from .errors import BadRequest

NDJSON = "application/x-ndjson"  # of the answer
# In Python `$` also matches before a final newline, which the header of the answer cannot carry.
RolloutId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,128}$(?!\n)")]
GroupId = str | int
JournalName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$(?!\n)")]
T = TypeVar("T")


class RolloutBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of `POST /rollout`."""

    groups: list[PromptRecord | str]
    """The prompts, as in a prompts file."""
    rollout_id: RolloutId | None = None
    """The rollout's name. Default: drawn."""
    sampling: dict[str, Any] | None = None
    """Replaces single parameters of the config's `sampling` for all groups."""
    n_samples_per_prompt: Samples | None = None
    """Samples of a group without its own `n`. Default: `rollout.n_samples_per_prompt`."""
    seed: Natural | None = None
    """Seed that every request is seeded from. Default: as for the runs of one `Rollout`."""
    target_groups: Positive | None = None
    """The rollout ends when so many groups count, and the others are aborted. Default: it ends
    with the last group."""
    dynamic_filtering: bool = False
    """Whether a group counts only after `POST /rollout/{id}/accept`; needs `target_groups`."""
    journal: JournalName | None = None
    """Folder in the server's `rollout.journal` that stores every returned chunk. If it has a
    rollout of these groups, that one continues. Default: none."""
    stream: Literal["groups", "samples"] = "groups"
    """What a line has: a complete group, or one sample as soon as it is finished."""


class AcceptBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of `POST /rollout/{id}/accept`."""

    group_id: GroupId
    """A complete group."""


class RejectBody(AcceptBody, frozen=True, kw_only=True):
    """The body of `POST /rollout/{id}/reject`."""

    groups: list[PromptRecord | str] = []
    """More groups for the rollout, for example one in place of the rejected one."""


async def read_rollout(http: web.Request) -> RolloutBody:
    """Returns the body of `POST /rollout`. Raises BadRequest, which names the group.

    NDJSON has one prompt per line; then the options are in the query.
    """
    body = await http.read()
    if not http.content_type.endswith(LINES):
        return decoded(body, RolloutBody)
    options: dict[str, Any] = dict(http.query)
    if twice := [name for name in options if len(http.query.getall(name)) > 1]:
        raise BadRequest(f"{twice[0]}: more than once in the query")
    if "groups" in options:
        raise BadRequest("groups: in the query; NDJSON has a group per line of the body")
    if "sampling" in options:
        options["sampling"] = _sampling(options["sampling"])
    lines = b",".join(line for line in body.splitlines() if line.strip())
    groups = decoded(b'{"groups":[' + lines + b"]}", RolloutBody).groups
    try:
        return msgspec.convert({**options, "groups": groups}, RolloutBody, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(plain(str(error))) from error


def _sampling(text: str) -> dict[str, Any]:
    try:
        return decoded(text.encode(), dict[str, Any])
    except BadRequest as error:
        raise BadRequest("sampling: not a JSON object in the query") from error


def decoded(body: bytes, kind: type[T]) -> T:
    """Returns a JSON body. Raises BadRequest for anything else."""
    with unreadable_as_refusal("the body"):
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise BadRequest(plain(str(error))) from error
