"""Samples of a rollout, computed again by an SGLang server and compared token by token."""
