"""The files that rollouts of seer-sgl and of other frameworks leave, and their response lengths."""
