"""Where the last step of an aborted request began, in `meta_info` of its reply.

SGLang appends the tokens of a step and then ends an aborted request without looking for a stop in
them (`Req.update_finish_state`). With drafts a step brings any number of tokens, and nothing in
the reply separates them from those before, which were all looked at.
"""

from seer_sgl.link.contract import EXAMINED

from .hook import REQ, Hook
from .sglang_types import SglReq


def hooks() -> list[Hook]:
    """Returns the hooks of this file."""
    return [
        Hook(
            f"{REQ}.update_finish_state",
            step_ends,
            "before",
            "SGLang ends an aborted request without looking for a stop in its last step; the reply "
            "reports where that step began, so that the driver can drop its tokens.",
        )
    ]


def step_ends(req: SglReq, new_accepted_len: int = 1) -> None:
    """Before `Req.update_finish_state`, which ends the request at once if `to_finish` is set.

    `customized_info` is SGLang's way into `meta_info`: lists with an item per output token.
    """
    if req.to_finish is None or req.finished_reason is not None:
        return
    count = len(req.output_ids)
    examined = max(0, count - new_accepted_len)
    req.customized_info = {**(req.customized_info or {}), EXAMINED: [examined] * count}
