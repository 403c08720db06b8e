"""Processes of ours: how they start, end, are restarted, and confine what they leave open."""
