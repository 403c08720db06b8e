"""Control calls that every engine gets as they are, or one engine only."""

from collections.abc import Mapping, Sequence

from aiohttp import web

from seer_sgl.server.errors import Failed

from .bodies import field, read_fields
from .checksums import compared
from .control import Answer, Control
from .fleet_calls import call, call_all
from .replies import combined, failures

# SGLang's endpoints that one engine has for itself: the fleet passes them on to each.
TO_EACH: Mapping[str, Sequence[str]] = {
    "/start_profile": ("GET", "POST"),
    "/stop_profile": ("GET", "POST"),
    "/start_expert_distribution_record": ("GET", "POST"),
    "/stop_expert_distribution_record": ("GET", "POST"),
    "/dump_expert_distribution_record": ("GET", "POST"),
    "/set_internal_state": ("POST", "PUT"),
    "/set_trace_level": ("GET", "POST"),
    "/configure_logging": ("GET", "POST"),
    "/freeze_gc": ("GET", "POST"),
    "/slow_down": ("GET", "POST"),
    "/load_lora_adapter": ("POST",),
    "/load_lora_adapter_from_tensors": ("POST",),
    "/unload_lora_adapter": ("POST",),
}
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Plain:
    """The handlers of these calls."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def to_each(self, http: web.Request, body: bytes) -> Answer:
        """Sends a call to every engine as it is."""
        engines = self._control.engines()
        replies = await call_all(engines, http.method, http.path_qs, body or None)
        return combined(replies, "Success.", failed=failures(replies))

    async def flush(self, http: web.Request, _: bytes) -> Answer:
        """Drops all cached KV of the engines; an engine refuses while requests run there."""
        control = self._control
        replies = await call_all(control.engines(), "POST", http.path_qs)
        if any(reply.ok for reply in replies.values()):
            control.service.driver.forget_kv()
        return combined(replies, FLUSHED, failed=failures(replies))

    async def check_weights(self, http: web.Request, body: bytes) -> Answer:
        """Sends `weights_checker` to every engine, and compares their checksums."""
        control = self._control
        action = field(read_fields(body), "action", str, "checksum")
        replies = await call_all(control.engines(), http.method, http.path_qs, body or None)
        if action != "checksum":
            return combined(replies, "Success.", failed=failures(replies))
        return compared(replies, control.ranks(), control.service.driver.stale)

    async def weights_by_name(self, http: web.Request, body: bytes) -> Answer:
        """Returns one parameter, of one engine."""
        engine = self._control.service.any_engine()
        reply = await call(engine, http.method, http.path_qs, body or None)
        if reply.status is None:
            raise Failed(reply.message)
        return reply.status, reply.reply
