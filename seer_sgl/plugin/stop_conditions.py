"""What the plugin does where SGLang checks a request for its end, `Req.update_finish_state`.

SGLang checks a whole accepted run at once: stop strings before stop tokens, strings in the order of
their list. If two conditions match, it may choose one that plain decoding, which checks after each
token, would never have reached. Here the conditions are checked after every token.

A reply also reports what only SGLang knows, in `customized_info`, which SGLang copies into
`meta_info`: lists with one item per output token.
"""

from collections.abc import Callable

from seer_sgl.link.contract import EXAMINED, STOP_TOKENS

from .hook import REQ, Hook
from .sglang_types import SglReq, SglScheduleBatch


def hooks() -> list[Hook]:
    return [
        Hook(
            f"{REQ}.update_finish_state",
            check_for_end,
            "around",
            "SGLang checks all tokens of a speculative step for a stop at once and those of an "
            "aborted request not at all, and keeps its window for stop strings to itself; each "
            "token is checked, and the reply reports where an aborted step began and the window.",
            "SGLang checks each token of a step for its end, and reports the window of stop "
            "strings.",
        )
    ]


def check_for_end(
    stock: Callable[[SglReq, int], None], req: SglReq, new_accepted_len: int = 1
) -> None:
    """Hook around `Req.update_finish_state`."""
    grammar = req.grammar
    if vars(req).pop("seer_open", False):  # as a plain step sees it
        req.grammar = None
    report_abort_position(req, new_accepted_len)
    look_after_every_token(stock, req, new_accepted_len)
    report_window(req)
    req.grammar = grammar


def note_open_grammars(batch: SglScheduleBatch) -> None:
    """Before a step of our worker: notes the requests whose grammar has not ended.

    SGLang shows a grammar the token of a plain step behind the check, and that of a speculative
    step before it. With `ignore_eos` a drafting engine would end a response one token earlier.
    """
    for req in batch.reqs if batch.has_grammar else ():
        req.seer_open = req.grammar is not None and not req.grammar.is_terminated()


def look_after_every_token(
    stock: Callable[[SglReq, int], None], req: SglReq, new_accepted_len: int
) -> None:
    """Appends the run's tokens again, one by one, and calls
    SGLang's check after each, until it ends the request.

    Without stop strings SGLang already checks each token. An abort keeps the whole run, as in stock
    SGLang. A grammar has accepted the whole run before this call, so its state does not belong to
    a token within the run.
    """
    params = req.sampling_params
    strings = params.stop_strs or params.stop_regex_strs
    undivided = req.finished() or req.to_finish or req.grammar is not None
    if new_accepted_len <= 1 or not strings or undivided:
        stock(req, new_accepted_len)
        return
    run = req.output_ids[-new_accepted_len:]
    del req.output_ids[-new_accepted_len:]
    for place, token in enumerate(run):
        req.output_ids.append(token)
        stock(req, 1)
        if req.finished():
            if req.finished_len is None:  # otherwise the rest would count as output
                req.finished_len = len(req.output_ids)
            req.output_ids.extend(run[place + 1 :])
            return


def report_abort_position(req: SglReq, new_accepted_len: int) -> None:
    """Before the check: stores where the last step of an aborted request began.

    SGLang ends the request in this call if `to_finish` is set, without checking the tokens of the
    step for a stop. With drafts they are several, and nothing else in the reply separates them from
    the earlier tokens, which were all checked.
    """
    if req.to_finish is None or req.finished_reason is not None:
        return
    count = len(req.output_ids)
    examined = max(0, count - new_accepted_len)
    req.customized_info = {**(req.customized_info or {}), EXAMINED: [examined] * count}


def report_window(req: SglReq) -> None:
    """After the check: adds how many tokens SGLang counts in the longest stop string of a finished
    request.

    SGLang searches for a stop string in so many of the last tokens, plus one
    (`Req._stop_match_tail_len`). The driver searches again at the boundary of two chunks, and must
    take the same window.
    """
    params = req.sampling_params
    if req.finished_reason is None or not params.stop_strs:
        return
    counts = [params.stop_str_max_len] * len(req.output_ids)
    req.customized_info = {**(req.customized_info or {}), STOP_TOKENS: counts}
