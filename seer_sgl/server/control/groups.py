"""The trainer's process groups: the ranks of all engines join one and leave it together."""

from collections.abc import Collection

from aiohttp import web

from seer_sgl.engine.client import HttpEngine
from seer_sgl.server.errors import Conflict

from .bodies import Fields, field, group_bodies, read_fields
from .control import Answer, Control, start_of
from .fleet_calls import call_all
from .replies import combined, failures

DEFAULT_NAME = "weight_update_group"  # SGLang's


class ProcessGroups:
    """The handlers of `init_weights_update_group` and `destroy_weights_update_group`."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def init_group(self, _: web.Request, body: bytes) -> Answer:
        """Makes every engine's ranks join the trainer's process group.

        Between begin and end of an update: the ranks of the engines that take part in it, because
        the others would wait for an engine that does not answer.
        """
        control, fields = self._control, read_fields(body)
        engines = control.taking_part()
        ranks = {engine.info.engine_id: engine.info.ranks for engine in engines}
        bodies, name = group_bodies(fields, ranks), group_name(fields)
        async with control.holds.during("init_weights_update_group"):
            replies = await call_all(engines, "POST", "/init_weights_update_group", bodies)
        failed = failures(replies, all_needed=True)
        if not failed:
            control.groups[name] = frozenset(start_of(each) for each in engines)
        return combined(replies, "Success.", failed=failed)

    async def destroy_group(self, _: web.Request, body: bytes) -> Answer:
        """Makes every engine leave the process group."""
        control = self._control
        control.groups.pop(group_name(read_fields(body)), None)
        async with control.holds.during("destroy_weights_update_group"):
            replies = await call_all(
                control.engines(), "POST", "/destroy_weights_update_group", body or b"{}"
            )
        return combined(replies, "Success.", failed=failures(replies))


def group_name(fields: Fields) -> str:
    """Returns the name of the process group in a call. Raises BadRequest for a wrong type."""
    return field(fields, "group_name", str, DEFAULT_NAME)


def require_complete(control: Control, name: str, engines: Collection[HttpEngine]) -> None:
    """Raises Conflict unless all members of a process group are among the engines.

    The others would wait for the missing ranks for ever. A group that was made elsewhere is
    unknown, and so are its members.
    """
    present = {start_of(engine) for engine in engines}
    missing = sorted(engine_id for engine_id, _ in control.groups.get(name, frozenset()) - present)
    if missing:
        raise Conflict(
            f"process group {name!r} has lost {', '.join(missing)}: destroy it, and create it again"
        )
