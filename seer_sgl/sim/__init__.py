"""The simulator: the real rollout loop on a virtual clock, against simulated engines."""
