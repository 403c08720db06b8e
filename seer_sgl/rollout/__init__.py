"""The asyncio side of a rollout: the loop, prompts in, samples and a report out."""

from .rollout import Rollout

__all__ = ["Rollout"]
