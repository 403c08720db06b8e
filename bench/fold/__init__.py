"""How much of the engines' time a rollout could give back before it ends: bound and policy."""
