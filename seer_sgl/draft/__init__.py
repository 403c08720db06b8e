"""Grouped speculative decoding (paper section 3): what a group has written drafts what comes next.

Importing a module from here costs half a second for numba: only those who draft do it.
"""
