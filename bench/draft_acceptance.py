"""Measures the acceptance of an index's drafts: replays the decoding of recorded texts."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from bench.draft_contenders import Contender, Row, Tokens, Tree
from bench.draft_streams import Siblings


class Acceptance(NamedTuple):
    """Means over all steps of all sequences."""

    drafted: float  # tokens
    accepted: float  # drafted tokens that match the text, without the bonus token
    steps: int


def accepted(tree: Tree, truth: Tokens) -> int:
    """Returns the length of the path from the root that equals the continuation of the text."""
    node = -1
    for depth, token in enumerate(truth.tolist()):
        children = zip(tree.tokens, tree.parents, strict=True)
        matches = [
            child
            for child, (drafted, parent) in enumerate(children)
            if parent == node and drafted == token
        ]
        if not matches:
            return depth
        node = matches[0]
    return len(truth)


def replay(
    contender: Contender,
    groups: Sequence[Siblings],
    live: Sequence[int],
    references: int,
    budget: int,
) -> Acceptance:
    """Replays the `live` responses of every group in one batch, beside finished references.

    References are the first responses that are not live. Every step extends a sequence by the
    accepted part of its draft and one more token.
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
    # The prefill samples the first token.
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
