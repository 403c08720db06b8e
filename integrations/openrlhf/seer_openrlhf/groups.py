"""The prompts of one batch: OpenRLHF's executor turns each into a group of samples with rewards."""

import asyncio
import logging
from copy import deepcopy
from typing import Any

from .batch import Batch
from .client import ServerError
from .failures import described, one_line
from .rewards import require_equal
from .sample_engine import SampleEngine

logger = logging.getLogger(__name__)
Json = dict[str, Any]
Group = asyncio.Task[list[Json]]
ATTEMPTS = 3  # of a group that the server gives up, or whose executors fail
NAME_CHARACTERS = 80  # of a prompt in messages
PLACE = "seer_place"  # in `extra_logs`, until the samples of a batch are put in order


class PromptFailed(RuntimeError):
    """A prompt got no samples; the text is one line that names it and the reason."""


class Groups:
    """The groups of a batch. `executor`: OpenRLHF's.

    A prompt has a place in the batch, from 0. A `call` has the executor's arguments.
    """

    def __init__(self, batch: Batch, executor: Any) -> None:
        self.unfinished = 0  # samples in progress
        self._batch = batch
        self._executor = executor
        self._groups: dict[int, Group] = {}  # without those whose responses were returned
        self._ready: asyncio.Queue[int] = asyncio.Queue()  # places, for `next`

    async def responses(self, place: int, size: int, call: Json) -> list[Json]:
        """Returns the responses to one prompt.

        A group that the server gives up, or for which an executor or a reward fails, is generated
        again as a whole. Raises PromptFailed after ATTEMPTS times, and ServerError at once.
        """
        group = self._begin(place, size, call)
        try:
            return await group
        finally:
            self._groups.pop(place, None)

    async def start(self, place: int, size: int, call: Json) -> None:
        """Generates the responses to one prompt, for `next` or `close`.

        It returns when they are ready, or when the batch ends.
        """
        group = self._begin(place, size, call)
        await asyncio.wait({group})
        if not group.cancelled():
            self._ready.put_nowait(place)

    async def next(self) -> list[Json]:
        """Returns the responses to the prompt that is ready next. Raises as `responses`."""
        return self._groups.pop(await self._ready.get()).result()

    def close(self) -> dict[int, list[Json] | None]:
        """Aborts what is unfinished.

        Returns by place what is left of the groups: responses that are ready, or None.
        """
        left = {place: _result(group) for place, group in self._groups.items()}
        for group in self._groups.values():
            group.cancel()
        self._batch.close()
        return left

    def _begin(self, place: int, size: int, call: Json) -> Group:
        group = asyncio.create_task(self._generated(place, size, call))
        self._groups[place] = group
        return group

    async def _generated(self, place: int, size: int, call: Json) -> list[Json]:
        """Returns the responses of a group after as many attempts as it takes."""
        name, cause = one_line(repr(call["prompt"]))[:NAME_CHARACTERS], ""
        self.unfinished += size
        try:
            for attempt in range(1, ATTEMPTS + 1):
                self._batch.figures.repeated_groups += attempt > 1
                try:
                    responses = await self._attempt(place, size, call)
                    require_equal(responses)
                    return responses
                except ServerError:
                    raise
                except Exception as error:  # the user's executors and rewards raise any kind
                    cause = described(error)
                    logger.warning(
                        "prompt %s: attempt %s of %s: %s", name, attempt, ATTEMPTS, cause
                    )
            raise PromptFailed(f"prompt {name} failed {ATTEMPTS} times: {cause}")
        finally:
            self.unfinished -= size

    async def _attempt(self, place: int, size: int, call: Json) -> list[Json]:
        """Returns the executors' responses. The first error ends all of them."""

        def decode(ids: list[int], skip_special_tokens: bool) -> str:
            text: str = call["hf_tokenizer"].decode(ids, skip_special_tokens=skip_special_tokens)
            return text

        # The same name in every attempt: a repeated group has the same seeds.
        name = str(place)
        self._batch.begin(name, size)
        length = call["max_length"]
        engines = [SampleEngine(self._batch, name, i, decode, length) for i in range(size)]
        tasks = [asyncio.create_task(self._response(engine, place, call)) for engine in engines]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._batch.forget(name)

    async def _response(self, engine: SampleEngine, place: int, call: Json) -> Json:
        """Returns the response of one executor, with the figures of its sample."""
        try:
            # Executors change the parameters of later turns.
            own = {**call, "sampling_params": deepcopy(call["sampling_params"])}
            response: Json = await self._executor.execute(llm_engine=engine, **own)
        finally:
            engine.ended()
        if not acts(response, call["max_length"]):
            raise ValueError(f"a response has no token of its own in {call['max_length']} tokens")
        logs = response.get("extra_logs") or {}
        return {**response, "extra_logs": {**logs, **engine.figures.logs(), PLACE: place}}


def acts(response: Json, length: int) -> bool:
    """Returns whether a response has an action token before OpenRLHF truncates it.

    Without one there is nothing to train on. The first token is never an action.
    """
    return any(max(start, 1) < min(end, length) for start, end in response["action_ranges"])


def placed(response: Json, place: int | None) -> Json:
    """Returns a response of an earlier batch as one of the prompt at this place."""
    return {**response, "extra_logs": {**response["extra_logs"], PLACE: place}}


def _result(group: Group) -> list[Json] | None:
    return group.result() if group.done() and group.exception() is None else None
