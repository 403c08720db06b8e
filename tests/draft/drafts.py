"""Drafts with given chances."""

import numpy as np

from seer_sgl.draft.drafter import Drafts


def drafts(rows: list[list[tuple[int, float]]], match: int = 6) -> Drafts:
    """Returns drafts from rows of (parent, probability of the path)."""
    width = max(len(row) for row in rows)
    result = Drafts(
        np.zeros((len(rows), width), np.int32),
        np.full((len(rows), width), -1, np.int32),
        np.zeros((len(rows), width), np.float32),
        np.zeros((len(rows), width), np.int32),
        np.array([len(row) for row in rows], np.int32),
        np.full(len(rows), match, np.int32),
    )
    for i, row in enumerate(rows):
        for k, (parent, prob) in enumerate(row):
            result.parents[i, k], result.probs[i, k] = parent, prob
    return result
