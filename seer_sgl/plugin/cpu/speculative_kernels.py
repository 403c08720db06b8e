"""The operators of `sgl_kernel` that speculative decoding calls, for a CPU.

Shapes and names equal those of the compiled operators; every output is written in place. The module
is also registered as `sgl_kernel.speculative`, which SGLang's own n-gram worker imports.
"""

import ctypes

import numpy as np
import numpy.typing as npt
import torch

_Slots = npt.NDArray[np.int64]


def _runs(start: torch.Tensor, end: torch.Tensor, rows: torch.Tensor) -> tuple[_Slots, _Slots]:
    """Returns row and column of every entry of the runs `start[i]:end[i]` of rows `rows[i]`."""
    first = start.numpy().astype(np.int64)
    counts = end.numpy() - first
    shift: _Slots = np.repeat(first - (counts.cumsum() - counts), counts)
    return np.repeat(rows.numpy(), counts), np.arange(len(shift), dtype=np.int64) + shift


def assign_extend_cache_locs_cpu(  # noqa: PLR0917 (the operator's signature)
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Gathers the KV slots of positions start:end of each request into `out_cache_loc`."""
    slots = req_to_token.numpy()[_runs(start_offset, end_offset, req_pool_indices)]
    out_cache_loc.numpy()[: slots.size] = slots


def assign_req_to_token_pool_cpu(  # noqa: PLR0917 (the operator's signature)
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Scatters `out_cache_loc` into the positions start:end of each request."""
    where = _runs(start_offset, end_offset, req_pool_indices)
    req_to_token.numpy()[where] = out_cache_loc.numpy()[: len(where[0])]


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Copies the KV slots of the accepted nodes, without gaps; `accept_index` -1 is no node."""
    nodes = accept_index.numpy().reshape(-1)
    nodes = nodes[nodes >= 0]
    accept_out_cache_loc.numpy()[: len(nodes)] = out_cache_loc.numpy()[nodes]


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copies KV rows `src_loc` to `tgt_loc` in every buffer (addresses and row sizes in bytes)."""
    target, source = tgt_loc.numpy(), src_loc.numpy()
    moved = target != source
    if not moved.any():
        return
    target, source = target[moved], source[moved]
    rows = int(max(target.max(), source.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        raw = (ctypes.c_uint8 * (rows * stride)).from_address(address)
        buffer = np.ctypeslib.as_array(raw).reshape(rows, stride)
        buffer[target] = buffer[source]  # numpy reads all rows before it writes


def reconstruct_indices_from_tree_mask(  # noqa: PLR0917 (the operator's signature)
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Writes positions and links of draft trees from the tree mask [batch, nodes, nodes]."""
    nodes = np.arange(draft_token_num)
    mask = tree_mask.numpy().reshape(batch_size, draft_token_num, draft_token_num).astype(bool)
    ancestors = mask & (nodes[None, :] < nodes[:, None])
    parents = np.where(ancestors.any(-1), (ancestors * nodes).argmax(-1), -1)
    child = np.full((batch_size, draft_token_num), -1, np.int64)
    sibling = child.copy()
    for row, parent_of in enumerate(parents.tolist()):
        for node in range(draft_token_num - 1, 0, -1):
            parent = parent_of[node]
            if parent >= 0:
                sibling[row, node] = child[row, parent]
                child[row, parent] = node
    depths = ancestors.sum(-1) + verified_seq_len.numpy()[:, None]
    positions.copy_(torch.from_numpy(depths.reshape(-1)))
    index = torch.arange(batch_size * draft_token_num)
    retrive_index.copy_(index.view(batch_size, draft_token_num))
    retrive_next_token.copy_(torch.from_numpy(child))
    retrive_next_sibling.copy_(torch.from_numpy(sibling))


def verify_tree_greedy_cpu(  # noqa: PLR0917 (the operator's signature)
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Verifies greedily, as SGLang does: walks each tree along the target's argmax."""
    tokens, target = candidates.tolist(), target_predict.reshape(-1).tolist()
    index = retrive_index.tolist()
    child, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    for row in range(len(tokens)):
        last, node, count = index[row][0], 0, 0
        accept_index[row, 0] = last
        while count + 1 < accept_index.shape[1]:
            node = child[row][node]
            while node != -1 and tokens[row][node] != target[last]:
                node = sibling[row][node]
            if node == -1:
                break
            predicts[last] = target[last]
            count += 1
            last = index[row][node]
            accept_index[row, count] = last
        accept_token_num[row] = count
        predicts[last] = target[last]
