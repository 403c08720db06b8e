"""The one Ray actor between OpenRLHF and the fleet of engines.

It has the methods of OpenRLHF's `RolloutRayActor` (trainer/ray/vllm_engine.py), and runs
OpenRLHF's own executors, so that rewards, truncation and multi-turn agents stay theirs.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .batch import Batch, clock
from .client import Server, ServerError, ServerLost
from .failures import reason
from .flags import current_flags
from .groups import Groups
from .lasting import Lasting
from .prompt_log_probs import log_probs_of
from .revival import Revival
from .rewards import RewardExecutor
from .weight_clock import WeightClock

Json = dict[str, Any]
MOST_CALLS = 1 << 20  # Ray lets an async actor run 1,000 calls at once by default
CLOSE_S = 10.0
_fronts: list[Any] = []  # Ray would end an actor without a handle before it is closed


class Front:
    """The actor. `executor`: OpenRLHF's, which turns prompts into responses with rewards.

    `wait_s`: how long a server that has ended may take to be back; 0: it is not waited for.
    """

    def __init__(self, server: Server, executor: Any, wait_s: float = 0.0) -> None:
        self._server = server
        self._executor = executor
        self._batch: Batch | None = None
        self._groups: Groups | None = None  # of the batch
        self._weights = WeightClock()
        self._trainers: dict[int, Any] = {}  # the actors of the policy, by rank
        self._asynchronous = False
        self._revival = Revival(server, self._weights, wait_s, self._send)
        self._lasting = Lasting(server, self._revival, self._weights)
        # A trainer that was killed may have left a pause: the first end of one is always sent.
        self._paused = True

    # Generation

    async def open_batch(self, name: str, seed: int) -> None:
        """Begins a batch: its prompts are rolled out together. `seed`: of their rollouts."""
        self.close_batch()
        self._batch = Batch(self._lasting, name, seed)
        self._groups = Groups(self._batch, self._executor)

    def expect(self, prompts: int) -> None:
        """Announces so many prompts of the batch, which are rolled out together."""
        if self._batch is not None:
            self._batch.expect(prompts)

    def close_batch(self) -> Json:
        """Ends the batch; what is unfinished is aborted. Nothing happens without a batch.

        Returns its `figures`, the `version` of the trainer's newest weights, and by place what is
        `left` of the groups that were started: responses that are ready, or None.
        """
        batch, groups = self._batch, self._groups
        self._batch = self._groups = None
        if batch is None or groups is None:
            return {}
        return {
            "left": groups.close(),
            "figures": {**batch.figures.logs(clock()), "seer_weight_sync_s": self._weights.seconds},
            "version": self._weights.version,
        }

    async def generate_responses(  # noqa: PLR0917 - OpenRLHF's signature
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        num_samples: int = 1,
        images: Any = None,
        *,
        place: int,
    ) -> list[Json]:
        """Returns the responses to one prompt of the batch (RolloutRayActor.generate_responses).

        `place`: the prompt's in the batch; seeds depend on it. Raises PromptFailed or ServerError.
        """
        call = {
            "prompt": prompt,
            "label": label,
            "sampling_params": sampling_params,
            "max_length": max_length,
            "hf_tokenizer": hf_tokenizer,
            "images": images,
        }
        return await self._open_groups().responses(place, num_samples, call)

    async def start_responses(self, *, place: int, num_samples: int, **call: Any) -> None:
        """Generates the responses to one prompt, for `next_responses` or `close_batch`.

        It takes the arguments of `generate_responses`.
        """
        await self._open_groups().start(place, num_samples, call)

    async def next_responses(self) -> list[Json]:
        """Returns the responses to the prompt that is ready next, of those that were started."""
        return await self._open_groups().next()

    def get_num_unfinished_requests(self) -> int:
        """Returns the number of responses in progress."""
        return 0 if self._groups is None else self._groups.unfinished

    def _open_groups(self) -> Groups:
        if self._groups is None:
            raise RuntimeError("no batch is open")
        return self._groups

    async def close(self) -> None:
        """Ends the batch and closes the connections to the server."""
        self.close_batch()
        await self._lasting.close()
        await self._server.close()

    # Weights

    def join(self, rank: int, ranks: int, actor: Any, *, asynchronous: bool) -> None:
        """Records an actor of the policy: `broadcast_to_vllm` of all ranks sends the weights."""
        self._trainers[rank] = actor
        self._asynchronous = asynchronous and ranks > 1

    async def until_up(self, why: str) -> None:
        """Returns when a server that has ended is back. Raises ServerError."""
        await self._revival.until_up(ServerLost(why))

    async def _send(self) -> None:
        """Makes the trainer send its weights. Raises ServerError.

        OpenRLHF's trainer waits for the samples meanwhile; an asynchronous one does not. Its ranks
        could receive this call and one of the trainer's in different orders, and wait for one
        another for ever.
        """
        if self._asynchronous:
            raise ServerError("the weights of several asynchronous ranks cannot be sent again")
        sent = [self._trainers[rank].broadcast_to_vllm.remote() for rank in self._trainers]
        try:
            await asyncio.gather(*sent)
        except RayError as error:
            raise ServerError(f"the weights cannot be sent again: {reason(error)}") from None

    async def update(self, path: str, fields: Json | None) -> Json:
        """Returns the server's answer to a part of a weight update, or why there is none.

        It is a GET without fields. A refusal is an answer, with `success` false. `ends`: how often
        the server has ended so far.
        """
        try:
            with self._weights.during(path, (fields or {}).get("weight_version")) as found:
                status, answer = await self._server.outcome(path, fields)
                found.update({"success": status == HTTPStatus.OK, **answer})
        except ServerError as error:
            return {"lost": True, "message": str(error)}
        return {**found, "ends": self._revival.ends}

    async def log_probs(self, engine: str, ids: Sequence[int]) -> Json:
        """Returns an engine's `log_probs` of all ids but the first, or why there are none.

        A pause of OpenRLHF's ends here: a paused engine would not answer.
        """
        try:
            await self.resume_generation()
            return await log_probs_of(self._server, engine, ids)
        except ServerError as error:
            return {"lost": True, "message": str(error)}

    async def pause_generation(self) -> None:
        """Stops generation; responses keep their tokens."""
        self._paused = True
        await self._control("/pause_generation", {"mode": "retract"})

    async def resume_generation(self) -> None:
        """Ends the pause, if there is one."""
        if self._paused:
            await self._control("/continue_generation", {})
            self._paused = False

    async def _control(self, path: str, body: Json) -> None:
        """Makes a call, once more if the server has ended and is back. Raises ServerError."""
        try:
            await self._server.control(path, body)
        except ServerLost as error:
            await self._revival.until_up(error)
            await self._server.control(path, body)


@ray.remote
class SeerFront(Front):
    """The front as a Ray actor: it makes its client and OpenRLHF's executor itself."""

    def __init__(self, server: Json, agent_func_path: str | None, reward_url: Any) -> None:
        wait_s = current_flags().wait_s
        super().__init__(Server(**server), make_executor(agent_func_path, reward_url), wait_s)


def make_executor(agent_func_path: str | None, reward_url: Any) -> Any:
    """Returns the executor that OpenRLHF would make, with rewards that are there or an error."""
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
