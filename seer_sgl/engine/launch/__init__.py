"""Launchers: start engines on this machine, or join running ones."""
