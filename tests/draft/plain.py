"""Drafts as proposals.py describes them, in plain Python: what the compiled search must return."""

from dataclasses import dataclass

import numpy as np

from seer_sgl.draft.automaton import (
    CHILDREN,
    COUNT,
    EDGE,
    EDGES,
    LABEL,
    LENGTH,
    LINK,
    NEXT,
    SIBLING,
    STATES,
    TO,
    TOKEN,
    Index,
)
from seer_sgl.draft.proposals import (
    DRAFT_ANYWAY,
    DRAFT_PER_CONTEXT,
    FRONTIER,
    SCANNED,
    SHORT,
    VOTERS,
)


@dataclass
class Node:
    """A token of a draft. `prob` is rounded to float32, as in the arrays."""

    token: int
    parent: int
    prob: float
    state: int


class PlainTrees:
    """Searches trees in an index, which must not grow meanwhile."""

    def __init__(self, index: Index, paths: int, minimum: float) -> None:
        self._states: list[list[int]] = index.states[: index.group[STATES]].tolist()
        self._edges: list[list[int]] = index.edges[: index.group[EDGES]].tolist()
        self._paths = paths
        self._minimum = minimum
        self.dropped = 0  # candidates for which the frontier had no room

    def draft(self, last: int, budget: int) -> list[Node]:
        """Returns the tree after the text that ends in state `last`."""
        context = self._continued(last)
        if context == 0:
            return []
        length = self._states[context][LENGTH]
        budget = min(budget, int(length * DRAFT_PER_CONTEXT + DRAFT_ANYWAY))
        tree: list[Node] = []
        open_nodes = self._voted(context, True, 1.0, -1, FRONTIER)
        while open_nodes and len(tree) < budget:
            at = max(range(len(open_nodes)), key=lambda at: open_nodes[at].prob)  # the first
            likeliest = open_nodes[at]
            _remove(open_nodes, at)
            tree.append(likeliest)
            state = self._continued(likeliest.state)
            if state > 0:
                at_end, room = state != likeliest.state, FRONTIER - len(open_nodes)
                open_nodes += self._voted(state, at_end, likeliest.prob, len(tree) - 1, room)
        return tree

    def _continued(self, state: int) -> int:
        while state > 0 and self._states[state][NEXT] == 0:
            state = self._states[state][LINK]
        return state

    def _voted(self, state: int, at_end: bool, left: float, parent: int, room: int) -> list[Node]:
        found: dict[int, Node] = {}  # by token
        for _ in range(VOTERS):
            row = self._states[state]
            escape = row[CHILDREN] * (1 + SHORT / row[LENGTH])
            likeliest = self._states[row[NEXT]][COUNT]
            share = left / (max(row[COUNT] - at_end, likeliest) + escape)
            for token, to in self._children(state):
                prob = share * self._states[to][COUNT]
                if token in found:
                    found[token].prob = _rounded(min(1.0, found[token].prob + prob))
                elif prob >= self._minimum / VOTERS:
                    if len(found) < room:
                        found[token] = Node(token, parent, _rounded(prob), to)
                    else:
                        self.dropped += 1
                if share * likeliest < self._minimum / VOTERS:
                    break
            left = share * escape
            state = row[LINK]
            if state <= 0 or left < self._minimum:
                break
        return self._kept(list(found.values()))

    def _children(self, state: int) -> list[tuple[int, int]]:
        """Returns the likeliest child and the newest others: tokens and states."""
        row = self._states[state]
        children = [(row[TOKEN], row[NEXT])]
        edge = row[EDGE]
        for _ in range(SCANNED):
            if edge == 0:
                break
            if self._edges[edge][TO] != row[NEXT]:
                children.append((self._edges[edge][LABEL], self._edges[edge][TO]))
            edge = self._edges[edge][SIBLING]
        return children

    def _kept(self, nodes: list[Node]) -> list[Node]:
        """Removes the least likely, of equals the last, until there are few and likely ones."""
        while nodes:
            least = min(range(len(nodes)), key=lambda at: (nodes[at].prob, -at))
            if len(nodes) <= self._paths and nodes[least].prob >= self._minimum:
                break
            _remove(nodes, least)
        return nodes


def _remove(nodes: list[Node], at: int) -> None:
    """The last node takes the place of the removed one."""
    nodes[at] = nodes[-1]
    nodes.pop()


def _rounded(prob: float) -> float:
    return float(np.float32(prob))
