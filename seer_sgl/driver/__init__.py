"""What drives a fleet: the asyncio loop, the monitor, the events of a rollout."""
