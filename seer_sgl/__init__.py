"""Divided, context-aware rollout for synchronous RL on SGLang (Seer, arXiv 2511.14617)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import load_ready
    from .rollout import Rollout

__all__ = ["Rollout", "load_ready"]


def __getattr__(name: str) -> Any:
    """Imports a name on first use: SGLang's processes import this package without needing it."""
    if name == "Rollout":
        from .rollout import Rollout

        return Rollout
    if name == "load_ready":
        from .config import load_ready

        return load_ready
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
