"""What a rollout did: recorded, reported, drawn."""
