"""What one executor takes for its engine."""

import asyncio
from collections.abc import Sequence
from typing import Any

from .batch import Batch, SampleLost
from .figures import SampleFigures
from .outputs import Decode, Output, output, parameters


class SampleEngine:
    """The engine of one executor: it knows the sample's place in the batch.

    `figures` are of all its responses. `length`: of a prompt and its response together, where vLLM
    ends a response. It is made on the event loop of the batch; requests may come from another
    thread's, as those of executors that serve HTTP to their agents do.
    """

    def __init__(
        self, batch: Batch, group_id: str, index: int, decode: Decode, length: int
    ) -> None:
        self.figures = SampleFigures()
        self._batch = batch
        self._group_id = group_id
        self._index = index
        self._decode = decode
        self._length = length
        self._turns = 0
        self._loop = asyncio.get_running_loop()

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling_params: Any, multi_modal_data: Any = None
    ) -> Output:
        """Returns the response to a prompt. Raises SampleLost or ServerError."""
        if multi_modal_data:
            raise ValueError("prompts with images are not supported")
        response = self._response(prompt_token_ids, sampling_params)
        if asyncio.get_running_loop() is self._loop:
            return await response
        # The batch and the client's connections belong to their loop.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(response, self._loop))

    async def _response(self, prompt_token_ids: Sequence[int], sampling_params: Any) -> Output:
        ids, params = list(prompt_token_ids), parameters(sampling_params)
        if not ids:
            raise ValueError("the prompt has no tokens")
        room = self._length - len(ids)
        params["max_new_tokens"] = max(1, min(params["max_new_tokens"] or room, room))
        turn, self._turns = self._turns, self._turns + 1
        if turn:
            sample = await self._batch.next(self._group_id, self._index, turn, ids, params)
        else:
            sample = await self._batch.first(self._group_id, self._index, ids, params)
        finish, tokens = sample["finish_reason"], sample["response_ids"]
        if finish not in ("stop", "length") or not tokens:
            raise SampleLost(f"a response of {len(tokens)} tokens ended with {finish}")
        self.figures.add(sample)
        return output(sample, sampling_params, self._decode)

    def ended(self) -> None:
        """Records that the executor has ended."""
        if not self._turns:
            self._batch.silent(self._group_id)
