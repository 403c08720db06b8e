"""Looks into the indexes of a drafter."""

from seer_sgl.draft import automaton, step
from seer_sgl.draft.drafter import Drafter


def length(drafter: Drafter, group: str, sequence: int) -> int:
    """Returns the number of response tokens of a sequence in the index."""
    row = drafter._indexes[group].sequences.get(sequence)
    return 0 if row is None else int(drafter._sequences.rows[row, step.TOKENS])


def arrays(drafter: Drafter) -> automaton.Index:
    """Returns the arrays of the drafter's only group, for reading.

    While they exist the index can neither grow nor be freed.
    """
    (group,) = drafter._indexes.values()
    states, edges, buckets = (rows.view() for rows in (group._states, group._edges, group._buckets))
    return automaton.Index(states, edges, buckets[:, 0], drafter._groups.rows[group.number])
