"""Turns prompts into groups of requests; each request has its own seed."""

import copy
import hashlib
from typing import Self

from seer_sgl.types import Group, Prompt, Request, Sampling


class GroupMaker:
    """Makes the groups of one run.

    `run_id` distinguishes its requests from the requests of other runs on the same engines.
    """

    def __init__(self, run_id: str, seed: int) -> None:
        self._run_id = run_id
        self._seed = seed
        self._next = 0  # the order of the next request

    def fork(self) -> Self:
        """Returns a maker that continues from here. The groups of one of both may be used."""
        return copy.copy(self)

    def group(self, prompt: Prompt, sampling: Sampling, limit: int, now: float) -> Group:
        """Returns a group with the prompt's n requests.

        `limit`: the maximum response tokens per request. `now`: the driver's clock.
        """
        group = Group(
            group_id=prompt.prompt_id,
            uid=f"{self._run_id}/{prompt.prompt_id}",
            prompt=prompt,
            sampling=sampling,
        )
        group.requests = self.requests(group, prompt.n, limit, now)
        return group

    def requests(self, group: Group, count: int, limit: int, now: float) -> list[Request]:
        """Returns more requests for a group; their indices follow the existing requests."""
        first = len(group.requests)
        return [self._request(group, first + number, limit, now) for number in range(count)]

    def _request(self, group: Group, index: int, limit: int, now: float) -> Request:
        order, self._next = self._next, self._next + 1
        return Request(
            uid=f"{self._run_id}.{order}",
            order=order,
            group=group,
            index=index,
            seed=derived_seed(self._seed, index, group.group_id),
            max_response_len=limit,
            submitted_at=now,
        )


def derived_seed(seed: int, *path: int | str) -> int:
    """Returns a 63-bit seed for one part of a seeded run, for example one request.

    `path` identifies the part. SGLang derives a request's noise from its seed and the position.
    """
    name = "/".join(map(str, (seed, *path)))
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
