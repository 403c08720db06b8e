"""A server with engines that sample deterministically: tokens depend on prompt and seed only.

Tokens are bytes of lower-case letters; EOS ends most responses.
"""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from byte_tokenizer import EOS
from seer_openrlhf.client import ServerError

Json = dict[str, Any]
# From the number of the rollout, the group's id and the index to how a sample goes wrong.
Fault = Callable[[int, str, int], str | None]


class FakeClient:
    """The client's methods, without a server.

    `order`: of the samples of a rollout; None: as they were asked for. `fault`: makes a sample
    `abort`, be `empty`, its group `fail`, the rollout `end` early or the server `break`. The
    samples of groups in `gates` come after all others, each group's after its event.
    """

    def __init__(self, order: random.Random | None = None, fault: Fault | None = None) -> None:
        self.rollouts: list[Json] = []
        self.generated: list[Json] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.aborted: Counter[str] = Counter()  # samples in progress when a client hung up
        self.version = "default"
        self.events: list[tuple[str, Any]] = []
        self._order = order
        self._fault = fault or (lambda *_: None)

    async def rollout(self, body: Mapping[str, Any]) -> AsyncGenerator[Json]:
        """Yields the lines of a rollout, samples as they finish."""
        number = len(self.rollouts)
        self.rollouts.append(dict(body))
        yield {"event": "start"}
        places = [(group, index) for group in body["groups"] for index in range(group["n"])]
        if self._order is not None:
            self._order.shuffle(places)
        places.sort(key=lambda place: place[0]["id"] in self.gates)
        left = Counter({group["id"]: group["n"] for group in body["groups"]})
        for group, index in places:
            fault = self._fault(number, group["id"], index)
            if fault == "break":
                raise ServerError("/rollout: the answer ended before its last line")
            if fault == "end":
                yield {"event": "end", "error": "no engine is left"}
                return
            await self._gate(group["id"], left)
            if fault == "fail":
                yield {"event": "group", "group_id": group["id"], "error": {"message": "refused"}}
                del left[group["id"]]
            if group["id"] not in left:
                continue
            yield self._sample(body["seed"], group, index, fault)
            self.events.append(("sample", (group["id"], index)))
            left[group["id"]] -= 1
            if not left[group["id"]]:
                yield {"event": "group", "group_id": group["id"]}
        yield {"event": "end", "error": None}

    async def generate(self, body: Mapping[str, Any]) -> Json:
        """Returns the reply to one request."""
        self.generated.append(dict(body))
        await asyncio.sleep(0)
        params = body["sampling_params"]
        ids, finish = response(params["sampling_seed"], body["input_ids"], params)
        return {
            "meta_info": {
                "finish_reason": {"type": finish, "matched": EOS if finish == "stop" else None},
                "output_token_logprobs": [(logprob(token), token, None) for token in ids],
                "weight_versions": [{"version": self.version, "start": 0, "end": len(ids)}],
                "spec_accept_length": 2.0,
                "seer": {"engines": ["e0"]},
            }
        }

    async def get(self, path: str) -> Json:
        """Returns what the front asks for: `/rollouts`."""
        return {"rollouts": [], "journals": False}

    async def outcome(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, Json]:
        """Answers a call of the control plane."""
        if body is None:
            return 200, {"engines": [{"id": "e0", "metadata": {"weight_version": self.version}}]}
        self.version = body.get("weight_version", self.version)
        return 200, {"success": True}

    async def _gate(self, group_id: str, left: Counter[str]) -> None:
        await asyncio.sleep(0)
        try:
            if group_id in self.gates:
                await self.gates[group_id].wait()
        except asyncio.CancelledError:
            self.aborted += left
            raise

    def _sample(self, seed: int, group: Json, index: int, fault: str | None) -> Json:
        drawn = number_of(seed, group["id"], index)
        ids, finish = response(drawn, group["prompt_ids"], group["sampling"])
        if fault == "empty":
            ids = []
        return {
            "event": "sample",
            "group_id": group["id"],
            "index": index,
            "response_ids": ids,
            "rollout_log_probs": [logprob(token) for token in ids],
            "finish_reason": "abort" if fault == "abort" else finish,
            "matched": EOS if finish == "stop" else None,
            "accept_length": 1.5,
            "engines": ["e0", "e1", "e1"],
            "weight_spans": [{"version": self.version, "tokens": len(ids)}],
        }


def response(seed: int, prompt: list[int], params: Mapping[str, Any]) -> tuple[list[int], str]:
    """Returns the tokens of a response, and how it ended."""
    draw = random.Random(number_of(seed, *prompt))
    ids = [draw.randrange(97, 123) for _ in range(draw.randrange(1, 12))]
    if len(ids) >= params["max_new_tokens"]:
        return ids[: params["max_new_tokens"]], "length"
    return [*ids, EOS], "stop"


def logprob(token: int) -> float:
    """Returns the log probability that every engine gives a token."""
    return -token / 256


def number_of(*parts: object) -> int:
    """Returns a number that depends on all parts."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest())
