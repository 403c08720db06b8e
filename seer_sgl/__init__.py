"""Divided, context-aware rollout for synchronous RL on SGLang (Seer, arXiv 2511.14617).

The names in `__all__` are the public interface (docs/reference.md). Everything else may change.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend.backend import Backend
    from .backend.groups import TrainerGroup
    from .backend.replies import CallResult, EnginesFailed
    from .backend.weights import WeightUpdate
    from .config import Config, load, load_ready
    from .driver.driver import Driver
    from .driver.groups import GroupMaker
    from .driver.observer import Observer
    from .driver.run import Run
    from .engine.fleet import Fleet, open_fleet
    from .errors import (
        ConfigError,
        EngineError,
        EngineStartError,
        HubError,
        InputError,
        JournalError,
        PoolError,
        PromptError,
        RolloutError,
        SeerError,
        StateError,
    )
    from .rollout import Rollout
    from .rollout.trajectories import Client, Trajectories
    from .sampling import Sampling
    from .types import Group, Prompt, Request, Sample

__all__ = [
    "Backend",
    "CallResult",
    "Client",
    "Config",
    "ConfigError",
    "Driver",
    "EngineError",
    "EngineStartError",
    "EnginesFailed",
    "Fleet",
    "Group",
    "GroupMaker",
    "HubError",
    "InputError",
    "JournalError",
    "Observer",
    "PoolError",
    "Prompt",
    "PromptError",
    "Request",
    "Rollout",
    "RolloutError",
    "Run",
    "Sample",
    "Sampling",
    "SeerError",
    "StateError",
    "TrainerGroup",
    "Trajectories",
    "WeightUpdate",
    "load",
    "load_ready",
    "open_fleet",
]
_MODULES = {
    "backend.backend": ("Backend",),
    "backend.groups": ("TrainerGroup",),
    "backend.replies": ("CallResult", "EnginesFailed"),
    "backend.weights": ("WeightUpdate",),
    "config": ("Config", "load", "load_ready"),
    "driver.driver": ("Driver",),
    "driver.groups": ("GroupMaker",),
    "driver.observer": ("Observer",),
    "driver.run": ("Run",),
    "engine.fleet": ("Fleet", "open_fleet"),
    "rollout": ("Rollout",),
    "rollout.trajectories": ("Client", "Trajectories"),
    "sampling": ("Sampling",),
    "types": ("Group", "Prompt", "Request", "Sample"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Imports a name on first use: SGLang's processes import this package without needing it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME.get(name, 'errors')}", __name__), name)
