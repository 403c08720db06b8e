"""The one Ray actor between OpenRLHF and the fleet of engines.

It has the methods of OpenRLHF's `RolloutRayActor` (trainer/ray/vllm_engine.py), and runs
OpenRLHF's own executors, so that rewards, truncation and multi-turn agents stay theirs.
"""

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .batch import Batch, SampleEngine
from .client import Server, ServerError
from .failures import described, one_line
from .flags import current_flags
from .rewards import RewardExecutor, require_equal

logger = logging.getLogger(__name__)
Json = dict[str, Any]
MOST_CALLS = 1 << 20  # Ray lets an async actor run 1,000 calls at once by default
ATTEMPTS = 3  # of a group that the server gives up, or whose executors fail
NAME_CHARACTERS = 80  # of a prompt in messages
CLOSE_S = 10.0
_fronts: list[Any] = []  # Ray would end an actor without a handle before it is closed


class PromptFailed(RuntimeError):
    """A prompt got no samples; the text is one line that names it and the reason."""


class Front:
    """The actor. `executor`: OpenRLHF's, which turns prompts into responses with rewards."""

    def __init__(self, server: Server, executor: Any) -> None:
        self._server = server
        self._executor = executor
        self._batch: Batch | None = None
        self._groups = itertools.count()
        self._unfinished = 0

    # Generation

    async def open_batch(self, name: str, seed: int) -> None:
        """Begins a batch: its prompts are rolled out together. `seed`: of their rollouts."""
        self.close_batch()
        self._batch = Batch(self._server, name, seed)

    def expect(self, prompts: int) -> None:
        """Announces so many prompts of the batch, which are rolled out together."""
        if self._batch is not None:
            self._batch.expect(prompts)

    def close_batch(self) -> None:
        """Ends the batch; what is unfinished is aborted."""
        if self._batch is not None:
            self._batch.close()
        self._batch = None

    async def generate_responses(  # noqa: PLR0917 - OpenRLHF's signature
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        num_samples: int = 1,
        images: Any = None,
    ) -> list[Json]:
        """Returns the responses to one prompt of the batch (RolloutRayActor.generate_responses).

        A group that the server gives up, or for which an executor or a reward fails, is generated
        again as a whole. Raises PromptFailed after ATTEMPTS times, and ServerError at once.
        """

        def decode(ids: list[int], skip_special_tokens: bool) -> str:
            text: str = hf_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
            return text

        batch, number = self._batch, next(self._groups)
        if batch is None:
            raise RuntimeError("no batch is open")
        call = {
            "prompt": prompt,
            "label": label,
            "sampling_params": sampling_params,
            "max_length": max_length,
            "hf_tokenizer": hf_tokenizer,
            "images": images,
        }
        name, cause = one_line(repr(prompt))[:NAME_CHARACTERS], ""
        self._unfinished += num_samples
        try:
            for attempt in range(1, ATTEMPTS + 1):
                engines = _engines(batch, f"{number}.{attempt}", num_samples, decode)
                try:
                    responses = await self._responses(engines, call)
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
            self._unfinished -= num_samples

    async def _responses(self, engines: Sequence[SampleEngine], call: Json) -> list[Json]:
        """Returns the executors' responses. The first error ends all of them."""

        async def one(engine: SampleEngine) -> Json:
            try:
                # Executors change the parameters of later turns.
                own = {**call, "sampling_params": deepcopy(call["sampling_params"])}
                response: Json = await self._executor.execute(llm_engine=engine, **own)
            finally:
                engine.ended()
            return response

        tasks = [asyncio.create_task(one(engine)) for engine in engines]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def get_num_unfinished_requests(self) -> int:
        """Returns the number of responses in progress."""
        return self._unfinished

    async def close(self) -> None:
        """Ends the batch and closes the connections to the server."""
        self.close_batch()
        await self._server.close()

    # Weights

    async def ranks(self) -> int:
        """Returns the number of ranks of all engines together."""
        info = await self._server.get("/server_info")
        ranks: int = info["seer"]["ranks"]
        return ranks

    async def control(self, path: str, **fields: Any) -> Json:
        """Returns the server's answer to a call of its control plane."""
        return await self._server.control(path, fields)

    async def pause_generation(self) -> None:
        """Stops generation; responses keep their tokens."""
        await self.control("/pause_generation", mode="retract")

    async def resume_generation(self) -> None:
        """Ends the pause."""
        await self.control("/continue_generation")

    async def reset_prefix_cache(self) -> None:
        """Does nothing: the server drops the KV of old weights with every update."""


@ray.remote
class SeerFront(Front):
    """The front as a Ray actor: it makes its client and OpenRLHF's executor itself."""

    def __init__(self, server: Json, agent_func_path: str | None, reward_url: Any) -> None:
        super().__init__(Server(**server), _executor(agent_func_path, reward_url))


def _engines(
    batch: Batch, group_id: str, size: int, decode: Callable[[list[int], bool], str]
) -> list[SampleEngine]:
    batch.begin(group_id, size)
    return [SampleEngine(batch, group_id, index, decode) for index in range(size)]


def _executor(agent_func_path: str | None, reward_url: Any) -> Any:
    from openrlhf.trainer.ray.vllm_engine import _load_agent_executor

    if agent_func_path:
        return _load_agent_executor(agent_func_path)
    return RewardExecutor(reward_url)


def create_engines(num_engines: int, *_: Any, **options: Any) -> list[Any]:
    """Replaces OpenRLHF's `create_vllm_engines`: one actor in front of the whole fleet."""
    flags = current_flags()
    # The tokens are read here: an actor on another machine has another environment.
    server = {
        "url": flags.url,
        "token": os.environ.get(flags.token_env),
        "admin_token": os.environ.get(flags.admin_token_env),
        "timeout_s": flags.timeout_s,
    }
    actor: Any = SeerFront
    # On this machine: it is the one from which the server was reached at the start. Without
    # restarts: a batch or a weight update that was in progress would be lost with the old process.
    front = actor.options(
        num_cpus=0,
        max_concurrency=MOST_CALLS,
        max_restarts=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        ),
    ).remote(server, options.get("agent_func_path"), options.get("remote_rm_url"))
    _fronts.append(front)
    return [front]


def close_fronts() -> None:
    """Closes what `create_engines` has made in this process, as far as it is still alive."""
    for front in _fronts:
        with contextlib.suppress(RayError):
            ray.get(front.close.remote(), timeout=CLOSE_S)
    _fronts.clear()
