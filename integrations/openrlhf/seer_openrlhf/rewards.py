"""Rewards that are there, or an error with the reason.

OpenRLHF's executor logs the error of a reward function or endpoint and leaves the reward out. The
batch would then break in the trainer, far from the reason, or train without this sample's reward.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from openrlhf.utils.agent import SingleTurnAgentExecutor

from .failures import described

Json = dict[str, Any]
NO_REWARDS = "the answer has no `rewards`"
_reason: ContextVar[str] = ContextVar("reason")  # of the sample, whose task this is


class RewardError(RuntimeError):
    """A sample has no reward; the text is one line."""


class RewardExecutor(SingleTurnAgentExecutor):
    """OpenRLHF's executor for one turn. A reward that is wanted and missing is an error."""

    async def execute(self, *arguments: Any, **options: Any) -> Json:
        """Returns a response (SingleTurnAgentExecutor.execute). Raises RewardError."""
        _reason.set(NO_REWARDS)
        response: Json = await super().execute(*arguments, **options)
        if self.reward_endpoints and response["reward"] is None:
            raise RewardError(f"{', '.join(self.reward_endpoints)}: {_reason.get()}")
        return response

    async def _fetch_rewards_via_func(self, *arguments: Any) -> Any:
        return await _noted(super()._fetch_rewards_via_func(*arguments))

    async def _fetch_rewards_via_http(self, *arguments: Any) -> Any:
        return await _noted(super()._fetch_rewards_via_http(*arguments))


def require_equal(responses: Sequence[Json]) -> None:
    """Raises RewardError if only some responses of a prompt have a reward."""
    missing = sum(response.get("reward") is None for response in responses)
    if 0 < missing < len(responses):
        raise RewardError(f"{missing} of {len(responses)} responses have no reward")


async def _noted(rewards: Any) -> Any:
    """Returns the awaited rewards. Notes the error, which OpenRLHF does not raise further."""
    try:
        return await rewards
    except Exception as error:
        _reason.set(described(error))
        raise
