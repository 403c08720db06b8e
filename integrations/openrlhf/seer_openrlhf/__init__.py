"""seer-sgl as OpenRLHF's generator. It talks HTTP to `seer-sgl serve` and imports nothing of it."""
