"""The rollout server: one SGLang-compatible endpoint in front of a fleet (`seer-sgl serve`)."""
