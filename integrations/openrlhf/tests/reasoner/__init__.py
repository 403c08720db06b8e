"""A GRPO run of the project's reasoner model with OpenRLHF."""
