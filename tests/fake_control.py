"""The control endpoints of the fake SGLang server, with the edges of the real one.

What crashes a real server (SGLang 0.5.21) sets `died`, and each later call is reset.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

SUCCESS = {"success": True, "message": "Success"}


@dataclass(eq=False)
class FakeControl:
    """The state that control calls change.

    `refused`: by path, the HTTP status to answer with. `silent`: paths that reset the connection.
    """

    tp_size: int = 1
    refused: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    died: str | None = None
    paused: str | None = None
    in_session: bool = False
    released: set[str] = field(default_factory=set)
    weights: str = "first"
    groups: dict[str, tuple[int, int]] = field(default_factory=dict)  # rank offset, world size
    held: asyncio.Event | None = None  # an update ends once it is set
    updating: asyncio.Event = field(default_factory=asyncio.Event)  # an update has begun
    continued: asyncio.Event = field(default_factory=asyncio.Event)
    weight_version: str = "v1"
    running: int = 0
    transferring: bool = False  # KV is being stored; a paused scheduler does not see its end

    def control_routes(self) -> list[web.RouteDef]:
        posts = {
            "/pause_generation": self.pause,
            "/continue_generation": self.resume,
            "/flush_cache": self.flush,
            "/release_memory_occupation": self.release,
            "/resume_memory_occupation": self.take_back,
            "/init_weights_update_group": self.init_group,
            "/destroy_weights_update_group": self.destroy_group,
            "/begin_weight_update": self.begin,
            "/end_weight_update": self.end,
            "/update_weights_from_disk": self.update,
            "/update_weights_from_ipc": self.update,
            "/update_weights_from_distributed": self.update_in_session,
            "/update_weights_from_tensor": self.update_in_session,
            "/update_weight_version": self.rename,
            "/weights_checker": self.check,
            "/get_weights_by_name": self.by_name,
            "/start_profile": self.start_profile,
            "/load_lora_adapter": self.succeed,
        }
        return [web.post(path, self._answered(handler)) for path, handler in posts.items()]

    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]

    def _answered(self, handler: Any) -> Any:
        async def answer(http: web.Request) -> web.Response:
            body = await http.read()
            fields = msgspec.json.decode(body) if body else {}
            self.calls.append((http.path, fields))
            if http.path in self.silent or self.died is not None:
                assert http.transport is not None
                http.transport.abort()
                return web.Response()
            if http.path in self.refused:
                refusal = {"success": False, "message": "refused"}
                return web.json_response(refusal, status=self.refused[http.path])
            reply = await handler(fields)
            if self.died is not None:
                assert http.transport is not None
                http.transport.abort()
            if isinstance(reply, web.Response):
                return reply
            success = not isinstance(reply, dict) or reply.get("success", True)
            return web.json_response(reply, status=200 if success else 400)

        return answer

    async def until_continued(self) -> None:
        while self.paused is not None:
            self.continued.clear()
            await self.continued.wait()

    async def succeed(self, _: dict[str, Any]) -> Any:
        return dict(SUCCESS)

    async def pause(self, fields: dict[str, Any]) -> Any:
        """Pauses: new requests wait."""
        self.paused = fields.get("mode", "abort")
        return {"message": "Generation paused successfully.", "status": "ok"}

    async def resume(self, _: dict[str, Any]) -> Any:
        self.paused = None
        self.transferring = False
        self.continued.set()
        return {"message": "Generation continued successfully.", "status": "ok"}

    async def flush(self, _: dict[str, Any]) -> Any:
        """Refuses while requests run or KV is being stored, and answers with text."""
        busy = self.running or self.transferring
        return web.Response(text="Cache flushed.\n", status=400 if busy else 200)

    async def release(self, fields: dict[str, Any]) -> Any:
        """Releases tags; crashes with requests running, or at a second release."""
        tags = set(fields.get("tags") or ("kv_cache", "weights", "cuda_graph"))
        if self.running or tags & self.released:
            self.died = "release_memory_occupation"
        self.released |= tags
        return None

    async def take_back(self, fields: dict[str, Any]) -> Any:
        """Resumes tags; crashes if one was not released."""
        tags = set(fields.get("tags") or ("kv_cache", "weights", "cuda_graph"))
        if not tags <= self.released:
            self.died = "KeyError"
        self.released -= tags
        return None

    async def init_group(self, fields: dict[str, Any]) -> Any:
        group = fields.get("group_name", "weight_update_group")
        self.groups[group] = (fields["rank_offset"], fields["world_size"])
        return {"success": True, "message": "Succeeded to initialize custom process group."}

    async def destroy_group(self, fields: dict[str, Any]) -> Any:
        group = fields.get("group_name", "weight_update_group")
        if self.groups.pop(group, None) is None:
            return {"success": False, "message": "The group to be destroyed does not exist."}
        return {"success": True, "message": "Succeeded to destroy custom process group."}

    async def begin(self, _: dict[str, Any]) -> Any:
        if self.in_session:
            return {"success": False, "message": "a weight-update session is already open"}
        self.in_session = True
        return dict(SUCCESS)

    async def end(self, _: dict[str, Any]) -> Any:
        if not self.in_session:
            return {"success": False, "message": "no weight-update session is open"}
        self.in_session = False
        return dict(SUCCESS)

    async def update_in_session(self, fields: dict[str, Any]) -> Any:
        """Updates the weights between begin and end only."""
        if not self.in_session:
            return {"success": False, "message": "must run between begin and end"}
        return await self.update(fields)

    async def update(self, fields: dict[str, Any]) -> Any:
        """Updates the weights; crashes if it has to flush while requests run."""
        if self.running and fields.get("flush_cache", True):
            self.died = "Cache flush failed after updating weights"
        self.updating.set()
        if self.held is not None:
            await self.held.wait()
        self.weights = fields.get("model_path", "tensors")
        self.weight_version = fields.get("weight_version") or self.weight_version
        return {"success": True, "message": "Succeeded to update model weights."}

    async def rename(self, fields: dict[str, Any]) -> Any:
        self.weight_version = fields["new_version"]
        return {"success": True, "message": "updated", "new_version": self.weight_version}

    async def check(self, _: dict[str, Any]) -> Any:
        return {**SUCCESS, "ranks": [{"tp_rank": 0}], "per_engine_checksum": self.weights}

    async def by_name(self, _: dict[str, Any]) -> Any:
        return [1.0, 2.0]

    async def start_profile(self, _: dict[str, Any]) -> Any:
        return web.Response(text="Start profiling.\n")
