"""Three draft indexes behind one interface: ours, ArcticInference's and SGLang's.

Each index is used as in its own project. ArcticInference's `SuffixTree`, one per group, drafts from
the last 64 tokens (`SuffixDecodingCache`), with vLLM's factor. SGLang's `NgramCorpus`, one per
engine, receives the last tokens of every request after every step (`NGRAMWorker`). It matches
incrementally and always fills its draft.
"""

import importlib.util
import os
import sys
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seer_sgl.draft.drafter import Drafter
from seer_sgl.link import contract

Tokens = NDArray[np.int32]
MIN_PROBABILITY = 0.1  # below it, ours and ArcticInference stop drafting
CONTEXT = 64  # tokens that ArcticInference matches


class Row(NamedTuple):
    """A sequence in a step: its new tokens, and its text including them and the prompt."""

    group: str
    sequence: int
    new: Tokens
    text: Tokens


class Tree(NamedTuple):
    """Drafted tokens; parents come before their children, -1 is the end of the text."""

    tokens: list[int]
    parents: list[int]


class Contender(Protocol):
    """An index to measure.

    `prepare` returns the batch for the three timed calls `append`, `draft` and `step`. It is not
    timed, because an engine has this data anyway.
    """

    name: str

    def open(self, group: str, prompt: Tokens) -> None: ...
    def close(self, group: str) -> None: ...
    def prepare(self, rows: list[Row], budget: int) -> Any: ...
    def append(self, batch: Any) -> None: ...
    def draft(self, batch: Any) -> Any: ...
    def step(self, batch: Any) -> Any: ...
    def trees(self, drafts: Any) -> list[Tree]: ...
    def nbytes(self) -> int | None: ...


class Ours:
    """`seer_sgl.draft.drafter.Drafter`: one call per step."""

    def __init__(
        self, paths: int, min_probability: float = MIN_PROBABILITY, name: str = "seer-sgl"
    ) -> None:
        self.name = name
        self.drafter = Drafter(min_probability=min_probability)
        self._paths = paths
        self._slots: dict[tuple[str, int], int] = {}

    def open(self, group: str, prompt: Tokens) -> None:
        self.drafter.open(group, prompt)

    def close(self, group: str) -> None:
        self.drafter.close(group)
        for key in [key for key in self._slots if key[0] == group]:
            self.drafter.detach(self._slots.pop(key))

    def prepare(self, rows: list[Row], budget: int) -> Any:
        for group, sequence, _, _ in rows:
            if (group, sequence) not in self._slots:
                self._slots[group, sequence] = self.drafter.attach(group, sequence)
        slots = np.array([self._slots[row.group, row.sequence] for row in rows])
        tokens = np.concatenate([row.new for row in rows])
        counts = np.array([len(row.new) for row in rows], np.int32)
        return slots, tokens, counts, np.full(len(rows), budget, np.int32)

    def append(self, batch: Any) -> None:
        slots, tokens, counts, budgets = batch
        self.drafter.step(slots, tokens, counts, np.zeros_like(budgets), self._paths)

    def draft(self, batch: Any) -> Any:
        slots, tokens, counts, budgets = batch
        return self.drafter.step(slots, tokens[:0], np.zeros_like(counts), budgets, self._paths)

    def step(self, batch: Any) -> Any:
        slots, tokens, counts, budgets = batch
        return self.drafter.step(slots, tokens, counts, budgets, self._paths)

    def trees(self, drafts: Any) -> list[Tree]:
        rows = zip(drafts.tokens, drafts.parents, drafts.counts, strict=True)
        return [Tree(row[:count].tolist(), up[:count].tolist()) for row, up, count in rows]

    def nbytes(self) -> int | None:
        return self.drafter.nbytes


class Arctic:
    """ArcticInference's suffix tree (C++), one per group; every sequence contains the prompt."""

    name = "ArcticInference"

    def __init__(self, paths: int) -> None:
        from arctic_inference.suffix_decoding._C import SuffixTree

        self._new = SuffixTree
        self._paths = paths
        self._groups: dict[str, Any] = {}
        self._prompts: dict[str, Tokens] = {}
        self._known: set[tuple[str, int]] = set()

    def open(self, group: str, prompt: Tokens) -> None:
        self._groups[group] = self._new(CONTEXT)
        self._prompts[group] = prompt

    def close(self, group: str) -> None:
        del self._groups[group]
        self._known = {key for key in self._known if key[0] != group}

    def prepare(self, rows: list[Row], budget: int) -> Any:
        for group, sequence, _, _ in rows:
            if (group, sequence) not in self._known:
                self._known.add((group, sequence))
                self._groups[group].extend_ndarray(sequence, self._prompts[group])
        return [
            (self._groups[row.group], row.sequence, row.new, row.text[-CONTEXT:], budget)
            for row in rows
        ]

    def append(self, batch: Any) -> None:
        for tree, sequence, new, _, _ in batch:
            tree.extend_ndarray(sequence, new)

    def draft(self, batch: Any) -> Any:
        as_tree = self._paths > 1
        return [
            tree.speculate_ndarray(text, budget, 1.0, 0.0, MIN_PROBABILITY, as_tree)
            for tree, _, _, text, budget in batch
        ]

    def step(self, batch: Any) -> Any:
        self.append(batch)
        return self.draft(batch)

    def trees(self, drafts: Any) -> list[Tree]:
        return [Tree(draft.token_ids, draft.parents) for draft in drafts]

    def nbytes(self) -> int | None:
        return sum(int(tree.estimate_memory()) for tree in self._groups.values())


class Ngram:
    """SGLang's corpus (C++): one trie of depth 18 and a million nodes for all groups."""

    name = "SGLang NgramCorpus"
    DEPTH = 18

    def __init__(self, paths: int, budget: int) -> None:
        from seer_sgl.plugin import cpu

        os.environ.setdefault(contract.CPU_SWITCH, "1")
        cpu.prepare()
        from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus

        # SGLang's defaults except the width: 8 continuations (its default) for a tree, 1 for a
        # chain. With 1, it drafts one chain per context until the draft is full.
        self._corpus = NgramCorpus(
            draft_token_num=budget + 1,
            max_bfs_breadth=8 if paths > 1 else 1,
            max_trie_depth=self.DEPTH,
        )
        self._width = budget + 1

    def open(self, group: str, prompt: Tokens) -> None:
        """`NGRAMWorker` does not insert prompts."""

    def close(self, group: str) -> None:
        """The corpus cannot remove a group; it reuses the least recently used nodes."""

    def prepare(self, rows: list[Row], budget: int) -> Any:
        # A long piece is a finished response: SGLang would have inserted it window by window.
        pieces = [row.text[-max(self.DEPTH, len(row.new)) :].tolist() for row in rows]
        tails = [row.text[-self.DEPTH :].tolist() for row in rows]
        names = [f"{row.group}/{row.sequence}" for row in rows]
        return pieces, names, tails, [len(row.text) for row in rows]

    def append(self, batch: Any) -> None:
        self._corpus.batch_put(batch[0])
        self._corpus.synchronize()

    def draft(self, batch: Any) -> Any:
        return self._corpus.batch_get(*batch[1:])

    def step(self, batch: Any) -> Any:
        self.append(batch)
        return self.draft(batch)

    def trees(self, drafts: Any) -> list[Tree]:
        width = self._width
        tokens, masks = drafts[0].reshape(-1, width), drafts[1].reshape(-1, width, width)
        trees = []
        for row, mask in zip(tokens, masks, strict=True):
            # A parent is the last ancestor before the node itself. If it has nothing to draft,
            # SGLang attaches token 0 to the root.
            parents = [int(np.flatnonzero(mask[node, :node])[-1]) - 1 for node in range(1, width)]
            trees.append(Tree(row[1:].tolist(), parents))
        return trees

    def nbytes(self) -> int | None:
        return None


def contenders(paths: int, budget: int) -> list[Contender]:
    """Returns a new instance of each installed index; prints how to install the missing ones."""
    installed: list[Contender] = [Ours(paths)]
    if importlib.util.find_spec("arctic_inference") is None:
        print("skipping ArcticInference: pip install arctic-inference==0.3.0", file=sys.stderr)
    else:
        installed.append(Arctic(paths))
    if importlib.util.find_spec("sglang") is None:
        print("skipping SGLang's NgramCorpus: make venv", file=sys.stderr)
    else:
        installed.append(Ngram(paths, budget))
    return installed
