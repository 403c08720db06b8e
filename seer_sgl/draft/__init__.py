"""Grouped speculative decoding: siblings draft from each other's tokens (paper section 3)."""
