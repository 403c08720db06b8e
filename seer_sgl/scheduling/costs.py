"""The cost of moving a request's KV to another engine, by a fetch or by a new prefill.

The rates start from defaults and follow the engines' measurements.
"""

import msgspec

WEIGHT = 0.1  # of a new observation in the running means


class Costs(msgspec.Struct):
    """Rates of one engine, tokens per second. `latency_s`: the fixed time of a fetch.

    A rate of 0 is unknown; a fetch then counts as faster (the paper's rule for every large gap).
    """

    prefill_tok_s: float = 0.0
    fetch_tok_s: float = 0.0
    latency_s: float = 0.01

    def fetching_pays(self, tokens: int) -> bool:
        """Returns whether a fetch of `tokens` from the pool is faster than a prefill."""
        if not self.prefill_tok_s or not self.fetch_tok_s:
            return True
        return self.latency_s + tokens / self.fetch_tok_s < tokens / self.prefill_tok_s

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """Updates the prefill rate: an engine prefilled `tokens` in `seconds`."""
        self.prefill_tok_s = _mean(self.prefill_tok_s, tokens / seconds)

    def observe_fetch(self, tokens: int, seconds: float) -> None:
        """Updates the fetch rate: an engine read `tokens` from the pool in `seconds`."""
        self.fetch_tok_s = _mean(self.fetch_tok_s, tokens / seconds)


def _mean(old: float, new: float) -> float:
    return new if not old else old + WEIGHT * (new - old)
