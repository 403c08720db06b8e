"""Draft trees as SGLang verifies them.

The layout is that of SGLang's `NgramVerifyInput`: a row of nodes, links to first children and next
siblings, and an attention mask. Node 0 is the last verified token. The walk that finds the accepted
path is in plugin/speculation/walk.py, because it runs where the target's draws are.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .compiled import int64, kernel
from .drafter import Drafts

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class Layout(NamedTuple):
    """n trees of `width` nodes; -1: no such node.

    No link leads to a node without a draft. Such a node is at depth 1 and attends to the root and
    itself, so verifying it does no harm.
    """

    tokens: Int64  # [n, width]; only the device knows those of the root and of padding: 0 here
    depths: Int64  # [n, width], 0 at the root
    parents: Int64  # [n, width]
    first_child: Int64  # [n, width]
    next_sibling: Int64  # [n, width]
    mask: NDArray[np.bool_]  # [n, width, width], row attends to column: its ancestors and itself


class Accepted(NamedTuple):
    """The path through each tree that the target model took.

    The tokens it emitted are its draws at the nodes `nodes[i, :counts[i]]`.
    """

    nodes: Int32  # [n, width], the root first, -1 after the last
    counts: Int32  # [n], at least 1


def lay_out(drafts: Drafts, width: int) -> Layout:
    """Returns trees of `width` nodes: a root and its drafts, cut to width - 1.

    A parent comes before its children, so a cut leaves a tree. Raises ValueError if the width is
    below 1.
    """
    if width < 1:
        raise ValueError(f"width {width}")
    shape = (len(drafts.counts), width)
    links = [np.empty(shape, np.int64) for _ in range(5)]
    mask = np.empty((*shape, width), np.bool_)
    layout = Layout(links[0], links[1], links[2], links[3], links[4], mask)
    _lay_out(drafts.tokens, drafts.parents, drafts.counts, *layout)
    return layout


def is_chains(layout: Layout) -> bool:
    """Returns whether no node has a sibling: every path then consists of a row's first nodes."""
    return bool((layout.next_sibling < 0).all())


def followed(
    drafts: Drafts, tokens: Int32, starts: Int64, counts: Int64
) -> tuple[Drafts, Accepted]:
    """Returns what a verification of the drafts would have shown, from what was written since.

    Row i has since written `tokens[starts[i] : starts[i] + counts[i]]`; nothing is known of a row
    without tokens. The drafts are cut where the tokens end.
    """
    nodes = np.full((len(drafts.counts), drafts.tokens.shape[1] + 1), -1, np.int32)
    lengths, told = np.zeros_like(drafts.counts), drafts.counts.copy()
    _follow(drafts.tokens, drafts.parents, tokens, starts, counts, nodes, lengths, told)
    return drafts._replace(counts=told), Accepted(nodes, lengths)


@kernel(
    "void(int32[:,::1], int32[:,::1], int32[::1], int64[::1], int64[::1], int32[:,::1],"
    " int32[::1], int32[::1])"
)
def _follow(
    drafts: Int32,
    parents: Int32,
    tokens: Int32,
    starts: Int64,
    counts: Int64,
    nodes: Int32,
    lengths: Int32,
    told: Int32,
) -> None:
    depths = np.zeros(drafts.shape[1], np.int64)
    for row in range(len(starts)):
        if counts[row] == 0:
            continue
        nodes[row, 0] = 0
        lengths[row] = 1
        for k in range(told[row]):
            parent = parents[row, k]
            depths[k] = 1 if parent < 0 else depths[parent] + 1
            depth = depths[k]
            if depth > counts[row]:
                told[row] = k
                break
            on_path = depth == lengths[row] and nodes[row, depth - 1] == parent + 1
            if on_path and drafts[row, k] == tokens[starts[row] + depth - 1]:
                nodes[row, depth] = k + 1
                lengths[row] = depth + 1


@kernel(
    "void(int32[:,::1], int32[:,::1], int32[::1], int64[:,::1], int64[:,::1], int64[:,::1],"
    " int64[:,::1], int64[:,::1], boolean[:,:,::1])"
)
def _lay_out(
    drafts: Int32,
    parents: Int32,
    counts: Int32,
    tokens: Int64,
    depths: Int64,
    parent_nodes: Int64,
    first_child: Int64,
    next_sibling: Int64,
    mask: NDArray[np.bool_],
) -> None:
    width = tokens.shape[1]
    mask[:] = False
    tokens[:] = 0
    parent_nodes[:] = -1
    first_child[:] = -1
    next_sibling[:] = -1
    last_child = np.empty(width, np.int64)
    for row in range(len(counts)):
        depths[row] = 1
        depths[row, 0] = 0
        mask[row, :, 0] = True
        last_child[:] = -1
        for node in range(1, width):
            mask[row, node, node] = True
            if node > counts[row]:
                continue
            parent = int64(parents[row, node - 1]) + 1
            tokens[row, node] = drafts[row, node - 1]
            depths[row, node] = depths[row, parent] + 1
            parent_nodes[row, node] = parent
            for ancestor in range(1, parent + 1):
                mask[row, node, ancestor] = mask[row, parent, ancestor]
            if last_child[parent] < 0:
                first_child[row, parent] = node
            else:
                next_sibling[row, last_child[parent]] = node
            last_child[parent] = node
