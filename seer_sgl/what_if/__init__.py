"""`seer-sgl what-if`: the gain of another order of requests, from lengths alone."""
