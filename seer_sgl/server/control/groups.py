"""The trainer's process group: the ranks of all engines join it and leave it together."""

from aiohttp import web

from .bodies import group_bodies, read_fields
from .control import Answer, Control
from .fleet_calls import call_all
from .replies import combined, failures


class ProcessGroups:
    """The handlers of `init_weights_update_group` and `destroy_weights_update_group`."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def init_group(self, _: web.Request, body: bytes) -> Answer:
        """Makes every engine's ranks join the trainer's process group."""
        control = self._control
        bodies = group_bodies(read_fields(body), control.ranks())
        async with control.holds.during("init_weights_update_group"):
            replies = await call_all(
                control.engines(), "POST", "/init_weights_update_group", bodies
            )
        return combined(replies, "Success.", failed=failures(replies, all_needed=True))

    async def destroy_group(self, _: web.Request, body: bytes) -> Answer:
        """Makes every engine leave the process group."""
        control = self._control
        read_fields(body)
        async with control.holds.during("destroy_weights_update_group"):
            replies = await call_all(
                control.engines(), "POST", "/destroy_weights_update_group", body or b"{}"
            )
        return combined(replies, "Success.", failed=failures(replies))
