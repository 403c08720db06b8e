"""How much of what an index drafts the recorded texts accept: decoding replayed token by token."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from bench.draft_contenders import Contender, Row, Tokens, Tree
from bench.draft_streams import Siblings


class Acceptance(NamedTuple):
    """Means over all steps of all sequences."""

    drafted: float  # tokens
    accepted: float  # drafted tokens that came true; the bonus token is one more
    steps: int


def accepted(tree: Tree, truth: Tokens) -> int:
    """Tokens on the path from the root that are what the text goes on with."""
    node = -1
    for depth, token in enumerate(truth.tolist()):
        children = zip(tree.tokens, tree.parents, strict=True)
        found = [
            child
            for child, (drafted, parent) in enumerate(children)
            if parent == node and drafted == token
        ]
        if not found:
            return depth
        node = found[0]
    return len(truth)


def replay(
    contender: Contender,
    groups: Sequence[Siblings],
    live: Sequence[int],
    references: int,
    budget: int,
) -> Acceptance:
    """Decode the `live` responses of every group, all at once, beside finished references.

    References are the first responses that are not live. Every step gives a sequence what was
    accepted of its draft and one token more.
    """
    for number, group in enumerate(groups):
        contender.open(str(number), group.prompt)
        finished = [k for k in range(len(group.responses)) if k not in live][:references]
        for sequence in finished:
            text = group.responses[sequence]
            whole = np.concatenate([group.prompt, text])
            contender.append(contender.prepare([Row(str(number), sequence, text, whole)], budget))
    texts = {
        (str(number), sequence): np.concatenate([group.prompt, group.responses[sequence]])
        for number, group in enumerate(groups)
        for sequence in live
    }
    # The prefill gives the first token.
    rows = {key: len(groups[int(key[0])].prompt) + 1 for key in texts}
    new = dict.fromkeys(texts, 1)
    drafted, taken = [], []
    while rows := {key: end for key, end in rows.items() if end < len(texts[key])}:
        batch = [
            Row(*key, texts[key][end - new[key] : end], texts[key][:end])
            for key, end in rows.items()
        ]
        trees = contender.trees(contender.step(contender.prepare(batch, budget)))
        for (key, end), tree in zip(rows.items(), trees, strict=True):
            hits = accepted(tree, texts[key][end : end + budget])
            drafted.append(len(tree.tokens))
            taken.append(hits)
            new[key] = min(hits + 1, len(texts[key]) - end)
            rows[key] = end + new[key]
    for number in range(len(groups)):
        contender.close(str(number))
    return Acceptance(fmean(drafted), fmean(taken), len(taken))
