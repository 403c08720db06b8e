"""Simulated rollouts on engines that fail."""
