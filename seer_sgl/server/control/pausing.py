"""Pause, continue, abort: what happens to the responses in progress."""

import asyncio
from typing import Literal

from aiohttp import web

from .bodies import field, read_fields
from .control import Answer, Control
from .fleet_calls import call_all
from .replies import combined, failures

PAUSE = "pause_generation"
Mode = Literal["abort", "retract", "in_place"]


class Pausing:
    """The handlers of `pause_generation`, `continue_generation` and `abort_request`."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def pause(self, _: web.Request, body: bytes) -> Answer:
        """Stops generation until `continue`.

        Mode `abort` ends every response with the tokens it has. In the other modes divided
        responses keep their tokens, and go on afterwards; the engines pause the forwarded ones.
        """
        control = self._control
        mode: Mode = field(read_fields(body), "mode", Mode, "abort")  # type: ignore[arg-type]
        engines = control.engines()
        if mode == "abort":
            await asyncio.gather(control.service.abort(""), control.holds.begin(PAUSE))
        else:
            await control.holds.begin(PAUSE)
        control.mode = mode
        replies = await call_all(
            engines, "POST", "/pause_generation", body or b"{}", control.service.timing.quick_call_s
        )
        message = "Generation paused successfully."
        return combined(replies, message, failed=failures(replies))

    async def resume(self, _: web.Request, body: bytes) -> Answer:
        """Ends the pause."""
        control = self._control
        read_fields(body)
        try:
            replies = await call_all(
                control.engines(),
                "POST",
                "/continue_generation",
                body or b"{}",
                control.service.timing.quick_call_s,
            )
        finally:
            control.mode = None
            control.holds.end(PAUSE)
        message = "Generation continued successfully."
        return combined(replies, message, failed=failures(replies))

    async def abort(self, _: web.Request, body: bytes) -> Answer:
        """Ends responses by their rid, a prefix of it, or all of them.

        Their clients get the tokens so far. Like SGLang it ignores an empty rid.
        """
        fields = read_fields(body)
        rid = field(fields, "rid", str | list[str], "")  # type: ignore[arg-type]
        service = self._control.service
        if field(fields, "abort_all", bool, False):
            aborted = await service.abort("")
        else:
            prefixes = [each for each in ([rid] if isinstance(rid, str) else rid) if each]
            aborted = sum([await service.abort(prefix) for prefix in prefixes])
        return 200, {"success": True, "message": f"{aborted} requests aborted", "aborted": aborted}
