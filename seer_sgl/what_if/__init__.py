"""`seer-sgl what-if`: what another order of requests would bring, from lengths alone."""
