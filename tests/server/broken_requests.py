"""Requests with changed values and bytes, sent as a bad client might."""

import asyncio
import contextlib
import json
import random
from copy import deepcopy
from typing import Any

from tests.server.hostile import REFUSED
from tests.server.raw import Connection, post

TEMPLATES: list[dict[str, Any]] = [
    {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 8}},
    {"input_ids": [[5], [6, 7]], "sampling_params": {"n": 2, "stop_token_ids": [3]}},
    {"input_ids": [5], "stream": True, "return_logprob": True, "rid": "r"},
    {"input_ids": [5], "group_id": "g", "group_size": 3, "session_id": "s"},
    {"input_ids": [5], "top_logprobs_num": 2, "logprob_start_len": 0},
    {"input_ids": [5], "sampling_params": {"logit_bias": {"5": 1.0}, "min_p": 0.5, "top_k": 3}},
]
VALUES: list[Any] = [
    *(None, True, -1, 0, 1.5, 1e308, 1 << 31, 1 << 63, 1 << 64, "", "x", "\0", "\ud7ff", [], {}),
    *([[]], [None], [1, "a"], {"a": {}}, {"": 0}, "x" * 10_000, [1] * 10_000, ["x"] * 1000),
]


def broken(choices: random.Random) -> bytes:
    """Returns a body: one of the templates with changed values, or with changed bytes."""
    if choices.random() < 0.1:
        return choices.choice(list(REFUSED.values()))
    fields = json.loads(json.dumps(choices.choice(TEMPLATES)))
    for _ in range(choices.randint(0, 3)):
        place = fields
        if isinstance(fields.get("sampling_params"), dict) and choices.random() < 0.5:
            place = fields["sampling_params"]
        field = choices.choice([*place, "stop", "max_new_tokens", "n"])
        place[field] = deepcopy(choices.choice(VALUES))
    body = bytearray(json.dumps(fields).encode())
    for _ in range(choices.choice([0, 0, 1, 5])):
        at = choices.randrange(len(body))
        body[at : at + choices.randint(0, 3)] = choices.randbytes(choices.randint(0, 3))
    return bytes(body)


async def send_badly(
    connection: Connection, body: bytes, choices: random.Random, **headers: str
) -> int | None:
    """Sends a request as a bad client might. Returns the status; None if it leaves before."""
    sent = post(body, **headers)
    manner = choices.random()
    if manner < 0.1:  # cut short
        await connection.send(sent[: choices.randrange(len(sent))])
        return None
    if manner < 0.2:  # of another length than it says
        length = str(max(0, len(body) + choices.randint(-5, 5)))
        sent = post(body, **headers, **{"Content-Length": length})
    if manner < 0.3:  # in small pieces
        for at in range(0, min(len(sent), 2000), 50):
            await connection.send(sent[at : at + 50])
            await asyncio.sleep(0)
        sent = sent[2000:]
    await connection.send(sent)
    if manner < 0.4:
        await asyncio.sleep(choices.random() * 0.01)
        return None
    if manner < 0.5:
        connection.writer.write_eof()
        return None
    async with asyncio.timeout(5.0):
        status, _ = await connection.head()
    if manner < 0.9:
        with contextlib.suppress(TimeoutError):  # a stream
            async with asyncio.timeout(1.0):
                await connection.reader.read(1 << 20)
    return status
