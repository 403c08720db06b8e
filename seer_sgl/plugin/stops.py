"""Stop conditions, looked for after every token of an accepted run.

`Req.update_finish_state` looks at the run as a whole: stop strings before stop tokens, strings in
the order of their list. With two ways to stop it may take one that plain decoding, which looks
after each token, would never have reached.
"""

from collections.abc import Callable
from typing import Any

from .hook import REQ, Hook


def hooks() -> list[Hook]:
    """Returns the hooks of this file."""
    return [
        Hook(
            f"{REQ}.update_finish_state",
            look_after_every_token,
            "around",
            "SGLang looks for a stop in all tokens of a speculative step at once; looking after "
            "each token ends a response where plain decoding would have ended it.",
        )
    ]


def look_after_every_token(
    stock: Callable[[Any, int], None], self: Any, new_accepted_len: int = 1
) -> None:
    """Around `Req.update_finish_state`: append the run's tokens again, one by one, and let SGLang
    look after each, until it ends the request.

    Without stop strings SGLang's own look is token by token already. An abort keeps the whole run,
    as in stock SGLang. A grammar has accepted the whole run before this call, so its state says
    nothing about a token within.
    """
    params = self.sampling_params
    strings = params.stop_strs or params.stop_regex_strs
    whole = self.finished() or self.to_finish or self.grammar is not None
    if new_accepted_len <= 1 or not strings or whole:
        stock(self, new_accepted_len)
        return
    run = self.output_ids[-new_accepted_len:]
    del self.output_ids[-new_accepted_len:]
    for place, token in enumerate(run):
        self.output_ids.append(token)
        stock(self, 1)
        if self.finished():
            if self.finished_len is None:  # else what follows would count as output
                self.finished_len = len(self.output_ids)
            self.output_ids.extend(run[place + 1 :])
            return
