"""Divided, context-aware rollout for synchronous RL on SGLang (Seer, arXiv 2511.14617)."""

__version__ = "0.1.0"
