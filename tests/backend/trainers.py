"""A trainer that changes the engines over HTTP, and one that does it from Python."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from seer_sgl.backend.replies import EnginesFailed
from seer_sgl.backend.weights import WeightUpdate
from seer_sgl.errors import SeerError, StateError
from tests.server.helpers import Served

DISK, TENSOR = "/update_weights_from_disk", "/update_weights_from_tensor"


class Said(NamedTuple):
    """What a call came to: `kind` is ok, failed (by engines), wrong or state."""

    kind: str
    message: str


class OverHttp:
    """The calls over HTTP."""

    def __init__(self, it: Served) -> None:
        self._it = it

    async def _post(self, path: str, **fields: Any) -> Said:
        status, answer = await self._it.post(path, **fields)
        kind = {200: "ok", 202: "ok", 409: "state"}.get(status)
        if kind is None:
            kind = "failed" if "engines" in answer else "wrong"
        return Said(kind, answer.get("message") or answer["error"]["message"])

    async def update(self, version: str | None, tensors: tuple[str, ...] = ()) -> Said:
        """Updates the weights from tensors; without any, from a folder."""
        if tensors:
            return await self._post(
                TENSOR, serialized_named_tensors=tensors, weight_version=version
            )
        return await self._post(DISK, model_path="new", weight_version=version)

    async def begin(self) -> Said:
        return await self._post("/begin_weight_update")

    async def end(self) -> Said:
        return await self._post("/end_weight_update")

    async def join(self, url: str) -> Said:
        return await self._post("/workers", url=url)


class FromPython:
    """The calls of the backend."""

    def __init__(self, it: Served) -> None:
        self._backend = it.service.backend

    async def _said(self, work: Any) -> Said:
        try:
            result = await work
        except EnginesFailed as error:
            return Said("failed", str(error))
        except StateError as error:
            return Said("state", str(error))
        except SeerError as error:
            return Said("wrong", str(error))
        return Said("ok", getattr(result, "message", ""))

    async def update(self, version: str | None, tensors: tuple[str, ...] = ()) -> Said:
        update = (
            WeightUpdate.from_tensors(tensors, version=version)
            if tensors
            else WeightUpdate.from_disk("new", version=version)
        )
        return await self._said(self._backend.update_weights(update))

    async def begin(self) -> Said:
        return await self._said(self._backend.begin_update())

    async def end(self) -> Said:
        return await self._said(self._backend.end_update())

    async def join(self, url: str) -> Said:
        return await self._said(self._backend.join(url))


Trainer = OverHttp | FromPython
TRAINERS: Mapping[str, type[Trainer]] = {"http": OverHttp, "python": FromPython}
