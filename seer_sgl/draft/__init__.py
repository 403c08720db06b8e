"""Grouped speculative decoding (paper section 3): a group's earlier tokens draft its next ones.

Importing a module of this package takes half a second for numba: only processes that draft do so.
"""
