"""A fake engine that returns routed experts, which depend on (seed, position) only.

As a program (`python -m tests.support.experts OPTIONS`) it serves until it is killed.
"""

import asyncio
import base64
import functools
import json
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import override

from seer_sgl.link.contract import EXPERTS, ORIGIN
from seer_sgl.routed_experts import ExpertShape
from tests.fake_sglang import FakeSGLang, serving_all

SHAPE = ExpertShape(layers=3, top_k=2, experts=8)


def rows_of(seed: int, first: int, count: int, shape: ExpertShape = SHAPE) -> bytes:
    """Returns the rows of `count` positions of a request with `seed`, from `first` on."""
    position = np.arange(first, first + count)[:, None]
    column = np.arange(shape.layers * shape.top_k)[None, :]
    mixed = (seed % 1009 + 1) * 7919 + position * 104_729 + column * 1299
    return (mixed // 7 % shape.experts).astype(shape.dtype).tobytes()


# What an engine may return instead of its rows.
SPOILED: dict[str, Callable[[bytes], bytes | None]] = {
    "none": lambda _: None,
    "too few rows": lambda rows: rows[: -SHAPE.row_bytes],
    "too many rows": lambda rows: rows + rows[: SHAPE.row_bytes],
    "part of a row": lambda rows: rows[:-1],
    "another layer": lambda rows: rows + rows[: len(rows) // SHAPE.layers],
    "SGLang's dtype": lambda rows: np.frombuffer(rows, "u1").astype("<i4").tobytes(),
    "unknown expert": lambda rows: bytes([SHAPE.experts]) + rows[1:],
}


@dataclass(eq=False)
class ExpertEngine(FakeSGLang):
    """A fake of an engine with the plugin and routed experts.

    Each reply consumes one of `spoiled`, names of SPOILED; "" is a correct reply.
    """

    shape: ExpertShape = SHAPE
    spoiled: deque[str] = field(default_factory=deque)
    log: list[dict[str, Any]] = field(default_factory=list)  # of the calls of several fakes

    def __post_init__(self) -> None:
        form = {name: getattr(self.shape, name) for name in ("layers", "top_k", "experts")}
        self.plugin = {"version": "0", "missing": [], "inexact": None, "experts": form}

    @override
    def _reply(self, call: dict[str, Any], fault: str = "ok") -> dict[str, Any]:
        self.log.append(call)
        reply = super()._reply(call, fault)
        meta, params = reply["meta_info"], call["sampling_params"]
        if call.get("return_routed_experts") and meta["completion_tokens"]:
            first = call.get("routed_experts_start_len", 0)
            count = len(call["input_ids"]) + meta["completion_tokens"] - 1 - first
            rows: bytes | None = rows_of(params["sampling_seed"], first, count, self.shape)
            if params.get("custom_params", {}).get(ORIGIN, {}).get(EXPERTS) != self.shape.dtype:
                rows = np.frombuffer(rows or b"", self.shape.dtype).astype("<i4").tobytes()
            name = self.spoiled.popleft() if self.spoiled else ""
            if name:
                rows = SPOILED[name](rows or b"")
            if rows is not None:
                meta["routed_experts"] = base64.b64encode(rows).decode()
        return reply


@dataclass(eq=False)
class EndlessEngine(ExpertEngine):
    """A fake for measurements: it answers at once, always with the same tokens and rows."""

    @override
    def _reply(self, call: dict[str, Any], fault: str = "ok") -> dict[str, Any]:
        count = call["sampling_params"]["max_new_tokens"]
        meta: dict[str, Any] = {
            "id": call["rid"],
            "finish_reason": {"type": "length", "length": count},
            "completion_tokens": count,
            "output_token_logprobs": _TOKEN * count,
            "weight_version": self.weight_version,
        }
        if call.get("return_routed_experts"):
            rows = len(call["input_ids"]) + count - 1 - call["routed_experts_start_len"]
            meta["routed_experts"] = _rows(rows, self.shape)
        return {"meta_info": meta}


_TOKEN = [[-0.5, 5, None]]


@functools.cache
def _rows(count: int, shape: ExpertShape) -> str:
    return base64.b64encode(rows_of(1, 0, count, shape)).decode()


async def _serve_for_ever(shape: dict[str, int], count: int, **options: Any) -> None:
    engines = [EndlessEngine(shape=ExpertShape(**shape), **options) for _ in range(count)]
    async with serving_all(engines) as urls:
        print(json.dumps(urls), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve_for_ever(**json.loads(sys.argv[1])))
