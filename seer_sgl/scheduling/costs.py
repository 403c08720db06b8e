"""What it costs to bring a request's KV to another engine: fetched, or computed again.

Starts from defaults and follows what the engines measure.
"""

import msgspec

WEIGHT = 0.1  # of a new observation in the running means


class Costs(msgspec.Struct):
    """Rates of one engine. `latency_s`: what a fetch costs however short it is.

    Rates of 0 are unknown: then a fetch is worth it, as published for any gap that is not small.
    """

    prefill_tok_s: float = 0.0
    fetch_tok_s: float = 0.0
    latency_s: float = 0.01

    def fetching_pays(self, tokens: int) -> bool:
        """Whether `tokens` come sooner out of the pool than out of a prefill."""
        if not self.prefill_tok_s or not self.fetch_tok_s:
            return True
        return self.latency_s + tokens / self.fetch_tok_s < tokens / self.prefill_tok_s

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """An engine prefilled `tokens` in `seconds`."""
        self.prefill_tok_s = _mean(self.prefill_tok_s, tokens / seconds)

    def observe_fetch(self, tokens: int, seconds: float) -> None:
        """An engine read `tokens` from the pool in `seconds`."""
        self.fetch_tok_s = _mean(self.fetch_tok_s, tokens / seconds)


def _mean(old: float, new: float) -> float:
    return new if not old else old + WEIGHT * (new - old)
