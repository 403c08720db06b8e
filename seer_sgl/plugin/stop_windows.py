"""Reports how many tokens SGLang counts in the longest stop string of a request, in its reply.

SGLang searches for a stop string in so many of the last tokens, plus one
(`Req._stop_match_tail_len`). The driver searches again at the boundary of two chunks, and must take
the same window.
"""

from seer_sgl.link.contract import STOP_TOKENS

from .sglang_types import SglReq


def report_window(req: SglReq) -> None:
    """After `Req.update_finish_state`: adds the count to the reply of a finished request.

    SGLang copies `customized_info` into `meta_info`: lists with one item per output token.
    """
    params = req.sampling_params
    if req.finished_reason is None or not params.stop_strs:
        return
    counts = [params.stop_str_max_len] * len(req.output_ids)
    req.customized_info = {**(req.customized_info or {}), STOP_TOKENS: counts}
