"""The routes of the control plane."""

from aiohttp import web

from seer_sgl.server.auth import add_admin_route
from seer_sgl.server.service import Service

from .control import Control
from .groups import ProcessGroups
from .memory import Memory
from .pausing import Pausing
from .plain import TO_EACH, Plain
from .weights import WeightUpdates

POST, GET_POST = ("POST",), ("GET", "POST")


def add_control_routes(app: web.Application, service: Service) -> Control:
    """Adds SGLang's control endpoints; each changes every engine and gives one answer."""
    control = Control(service)
    pausing, memory, plain = Pausing(control), Memory(control), Plain(control)
    groups, weights = ProcessGroups(control), WeightUpdates(control)
    free, locked = control.handler, control.locked
    for path, methods, handler in (
        ("/pause_generation", POST, locked(pausing.pause)),
        ("/continue_generation", POST, locked(pausing.resume)),
        ("/abort_request", POST, free(pausing.abort)),
        ("/flush_cache", GET_POST, free(plain.flush)),
        ("/release_memory_occupation", GET_POST, locked(memory.release)),
        ("/resume_memory_occupation", GET_POST, locked(memory.resume)),
        ("/init_weights_update_group", POST, locked(groups.init_group)),
        ("/destroy_weights_update_group", POST, locked(groups.destroy_group)),
        ("/begin_weight_update", POST, locked(weights.begin)),
        ("/end_weight_update", POST, locked(weights.end)),
        ("/update_weights_from_disk", POST, locked(weights.from_disk)),
        ("/update_weights_from_distributed", POST, locked(weights.from_distributed)),
        ("/update_weights_from_tensor", POST, locked(weights.from_tensor)),
        ("/update_weights_from_ipc", POST, locked(weights.from_ipc)),
        ("/update_weight_version", POST, locked(weights.rename)),
        ("/weights_checker", GET_POST, free(plain.check_weights)),
        ("/get_weights_by_name", GET_POST, free(plain.weights_by_name)),
        *((path, methods, free(plain.to_each)) for path, methods in TO_EACH.items()),
    ):
        for method in methods:
            add_admin_route(app, method, path, handler)

    async def close(_: web.Application) -> None:
        await control.close()

    app.on_cleanup.append(close)
    return control
