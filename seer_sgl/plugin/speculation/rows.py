"""The requests of the decode batch and where their tokens are in the group indexes.

Tokens reach an index from two sources: `Req.output_ids`, which SGLang has booked, and, with
overlapped scheduling, the last step, which is not booked yet. A row records how many tokens of its
request the index has, so a skipped step or a retracted one does no harm.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seer_sgl.draft.automaton import MAX_TOKEN
from seer_sgl.draft.drafter import Drafter
from seer_sgl.draft.replica import Replica
from seer_sgl.plugin.origin import given_origin
from seer_sgl.plugin.sglang_types import SglReq


class Origin(NamedTuple):
    """The response that a /generate call continues."""

    group: str
    sample: int
    prompt_len: int  # tokens of the prompt; the rest of the input is response


def origin_of(req: SglReq) -> Origin:
    """Returns the origin from the request's `custom_params`; without one, a group of its own."""
    origin, length = given_origin(req), len(req.origin_input_ids)
    group, sample, prompt_len = (origin.get(name) for name in ("group", "sample", "prompt_len"))
    if (
        isinstance(group, str)
        and isinstance(sample, int)
        and isinstance(prompt_len, int)
        and 0 <= sample < 1 << 31
        and 0 < prompt_len <= length
    ):
        return Origin(group, sample, prompt_len)
    return Origin(req.rid, 0, length)


class BatchRows:
    """The rows of the decode batch, in its order. All arrays have one entry per row."""

    def __init__(self, drafter: Drafter, replica: Replica) -> None:
        self.slots: NDArray[np.int64] = np.empty(0, np.int64)
        self.lengths: NDArray[np.int64] = np.empty(0, np.int64)  # tokens the index has
        self.limits: NDArray[np.int64] = np.empty(0, np.int64)  # tokens the request may reach
        self._drafter = drafter
        self._replica = replica
        self.rids: list[str] = []
        self._reqs: list[SglReq] = []
        self._known: dict[str, tuple[int, int]] = {}  # rid -> slot, limit

    def follow(self, reqs: Sequence[SglReq]) -> None:
        """Updates the rows: the batch now consists of `reqs`."""
        rids = [req.rid for req in reqs]
        if rids == self.rids:
            return
        for rid in set(self.rids) - set(rids):
            self.leave(rid)
        lengths = dict(zip(self.rids, self.lengths.tolist(), strict=True))
        for req in reqs:
            if req.rid not in self._known:
                self._known[req.rid], lengths[req.rid] = self._begin(req)
        rows = [self._known[rid] for rid in rids]
        self._reqs, self.rids = list(reqs), rids
        self.slots = np.array([slot for slot, _ in rows], np.int64)
        self.limits = np.array([limit for _, limit in rows], np.int64)
        self.lengths = np.array([lengths[rid] for rid in rids], np.int64)

    def missing(
        self,
        reqs: Sequence[SglReq],
        totals: NDArray[np.int64],
        runs: NDArray[np.int32],
        run_lens: NDArray[np.int64],
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Returns the tokens that the indexes lack, row after row, and their number per row.

        totals: tokens per request, the newest included. runs [rows, stride]: the tokens of the
        last step, `run_lens` of them per row.
        """
        counts = totals - self.lengths
        if (counts == run_lens).all():
            columns = np.arange(runs.shape[1])
            tokens = runs[columns < run_lens[:, None]]
        else:
            parts = []
            for i, req in enumerate(reqs):
                if counts[i] < 0:  # retracted: begin again
                    self._restart(i, req)
                    counts[i] = totals[i] - self.lengths[i]
                parts.append(_newest(req, int(counts[i]), int(totals[i]), runs[i], run_lens[i]))
            tokens = np.concatenate(parts) if parts else np.empty(0, np.int32)
        self.lengths = self.lengths + counts
        return np.ascontiguousarray(tokens, np.int32), counts.astype(np.int32)

    def share(self, tokens: NDArray[np.int32], counts: NDArray[np.int32]) -> None:
        """Shares tokens that are in the indexes with siblings on other engines."""
        ids, start = tokens.tolist(), 0
        for slot, count in zip(self.slots.tolist(), counts.tolist(), strict=True):
            if count:
                self._replica.grown(slot, ids[start : start + count])
                start += count

    def leave(self, rid: str) -> None:
        """Removes a request from the batch, after adding its last tokens for its siblings."""
        if rid not in self._known:
            return
        at = self.rids.index(rid)
        self._settle(at, self._reqs[at])
        self._replica.end(self._known.pop(rid)[0])
        del self._reqs[at], self.rids[at]
        self.slots, self.lengths = np.delete(self.slots, at), np.delete(self.lengths, at)
        self.limits = np.delete(self.limits, at)

    def _settle(self, at: int, req: SglReq) -> None:
        """Puts the tokens booked since the last drafting step into the index."""
        output = req.output_ids if req.finished_len is None else req.output_ids[: req.finished_len]
        known = int(self.lengths[at]) - len(req.origin_input_ids)
        if 0 <= known < len(output):
            tokens = np.array(output[known:], np.int32)
            slot, nothing = self.slots[at : at + 1], np.zeros(1, np.int32)
            self._drafter.step(slot, tokens, np.array([len(tokens)], np.int32), nothing, 1)
            self._replica.grown(int(slot[0]), tokens.tolist())

    def _begin(self, req: SglReq) -> tuple[tuple[int, int], int]:
        origin = origin_of(req)
        # SGLang puts hashes of images in place of their tokens.
        ids = [one if 0 <= one <= MAX_TOKEN else 0 for one in req.origin_input_ids]
        response = [*ids[origin.prompt_len :], *req.output_ids]
        slot = self._replica.begin(origin.group, origin.sample, ids[: origin.prompt_len], response)
        limit = len(ids) + req.sampling_params.max_new_tokens
        return (slot, limit), len(ids) + len(req.output_ids)

    def _restart(self, i: int, req: SglReq) -> None:
        self._replica.end(int(self.slots[i]))
        self._known[req.rid], self.lengths[i] = self._begin(req)
        self.slots[i] = self._known[req.rid][0]


def _newest(
    req: SglReq, count: int, total: int, run: NDArray[np.int32], run_len: int
) -> NDArray[np.int32]:
    """Returns the last `count` of a request's `total` tokens."""
    booked = len(req.origin_input_ids) + len(req.output_ids)
    late = max(0, total - booked)  # only in the run so far
    early = count - late
    tail = run[run_len - late : run_len]
    if early <= 0:
        return tail[late - count :]
    first = total - count - len(req.origin_input_ids)  # the index has the whole input
    return np.concatenate((np.array(req.output_ids[first : first + early], np.int32), tail))
