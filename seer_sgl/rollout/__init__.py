"""The facade `Rollout` and its files: prompts, samples, lengths and history."""

from .rollout import Rollout

__all__ = ["Rollout"]
