"""Reports where the last step of an aborted request began, in `meta_info` of its reply.

SGLang appends the tokens of a step and then ends an aborted request without checking them for a
stop (`Req.update_finish_state`). With drafts, a step adds several tokens. Nothing in the reply
separates them from the earlier tokens, which were all checked.
"""

from seer_sgl.link.contract import EXAMINED

from .sglang_types import SglReq


def step_ends(req: SglReq, new_accepted_len: int = 1) -> None:
    """Before `Req.update_finish_state`: stores where the step of an aborted request began.

    SGLang ends the request in this call if `to_finish` is set. It copies `customized_info` into
    `meta_info`: lists with one item per output token.
    """
    if req.to_finish is None or req.finished_reason is not None:
        return
    count = len(req.output_ids)
    examined = max(0, count - new_accepted_len)
    req.customized_info = {**(req.customized_info or {}), EXAMINED: [examined] * count}
