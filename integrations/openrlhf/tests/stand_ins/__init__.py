"""What OpenRLHF needs to run without vLLM, flash-attn and a GPU; for tests only."""
